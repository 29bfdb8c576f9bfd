"""The arguments of a stream that an operator runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import conf as airflow_conf

from airflow_eos.operators.shown import Shown
from airflow_eos.operators.spark_arguments import SparkArguments
from airflow_eos.sinks.policy import INTERVAL, CheckpointPolicy
from airflow_eos.supervision.preflight import TimeoutBudget

if TYPE_CHECKING:
    from airflow_eos.supervision.stopping import Cancel


class StreamingArguments(Shown, SparkArguments):
    """What a stream is run with; :class:`SparkStreamingOperator` says what each argument is for."""

    template_fields: Sequence[str] = (
        *SparkArguments.template_fields,
        "checkpoint_location",
        "transactional_id_prefix",
        "kafka_config_id",
        "storage_conn_id",
        "participant_conn_ids",
        "outputs",
        "guarantee",
        "consumer_group",
    )

    def __init__(
        self,
        *,
        checkpoint_location: str,
        transactional_id_prefix: str | None = None,
        kafka_config_id: str = "kafka_default",
        ship_package: bool = True,
        storage_conn_id: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        participant_conn_ids: Mapping[str, str] | None = None,
        outputs: Sequence[Mapping[str, Any]] | str | None = None,
        guarantee: str = "exactly_once",
        consumer_group: str | None = None,
        trigger_interval: timedelta = INTERVAL,
        batch_within: timedelta = timedelta(minutes=1),
        recover_within: timedelta = timedelta(minutes=5),
        transaction_timeout: timedelta = timedelta(minutes=15),
        max_restarts: int = 3,
        restart_delay: timedelta = timedelta(seconds=10),
        policy: CheckpointPolicy | None = None,
        recover_before_start: bool = True,
        drain_timeout: timedelta = timedelta(minutes=2),
        patience: timedelta = timedelta(minutes=1),
        submit_timeout: timedelta = timedelta(minutes=10),
        cancel: Cancel = "drain",
        deferrable: bool | None = None,
        poke_interval: float = 5.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.checkpoint_location = checkpoint_location
        self.transactional_id_prefix = transactional_id_prefix
        self.kafka_config_id = kafka_config_id
        self.ship_package = ship_package
        self.storage_conn_id, self.storage_options = storage_conn_id, storage_options
        self.participant_conn_ids = participant_conn_ids
        self.outputs, self.guarantee, self.consumer_group = outputs, guarantee, consumer_group
        self.policy = policy or CheckpointPolicy()
        interval, self.restart = self.policy.beside(
            trigger_interval=trigger_interval,
            max_restarts=max_restarts,
            restart_delay=restart_delay,
        )
        self.budget = TimeoutBudget(interval, batch_within, recover_within, transaction_timeout)
        self.recover_before_start = recover_before_start
        self.drain_timeout, self.patience = drain_timeout, patience
        self.submit_timeout, self.cancel = submit_timeout, cancel
        if deferrable is None:
            deferrable = airflow_conf.getboolean("operators", "default_deferrable", fallback=False)
        self.deferrable, self.poke_interval = deferrable, poke_interval
