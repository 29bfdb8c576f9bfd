"""The arguments of a stream that an operator runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import conf as airflow_conf

from airflow_eos.arguments import Duration, taken
from airflow_eos.hooks.arguments import as_rendered
from airflow_eos.operators.shown import Shown
from airflow_eos.operators.spark_arguments import SparkArguments
from airflow_eos.sinks.policy import INTERVAL, CheckpointPolicy
from airflow_eos.supervision.preflight import TimeoutBudget

if TYPE_CHECKING:
    from airflow.sdk import XComArg

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
        checkpoint_location: str | XComArg,
        transactional_id_prefix: str | XComArg | None = None,
        kafka_config_id: str | XComArg = "kafka_default",
        ship_package: bool = True,
        storage_conn_id: str | XComArg | None = None,
        storage_options: Mapping[str, str] | None = None,
        participant_conn_ids: Mapping[str, str] | XComArg | None = None,
        outputs: Sequence[Mapping[str, Any]] | str | XComArg | None = None,
        guarantee: str | XComArg = "exactly_once",
        consumer_group: str | XComArg | None = None,
        trigger_interval: Duration = INTERVAL,
        batch_within: Duration = timedelta(minutes=1),
        recover_within: Duration = timedelta(minutes=5),
        transaction_timeout: Duration = timedelta(minutes=15),
        max_restarts: int = 3,
        restart_delay: Duration = timedelta(seconds=10),
        policy: CheckpointPolicy | None = None,
        recover_before_start: bool = True,
        drain_timeout: Duration = timedelta(minutes=2),
        patience: Duration = timedelta(minutes=1),
        submit_timeout: Duration = timedelta(minutes=10),
        cancel: Cancel = "drain",
        deferrable: bool | None = None,
        poke_interval: Duration = 5.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.checkpoint_location: str = as_rendered(checkpoint_location)
        self.transactional_id_prefix: str | None = as_rendered(transactional_id_prefix)
        self.kafka_config_id: str = as_rendered(kafka_config_id)
        self.ship_package = ship_package
        self.storage_conn_id: str | None = as_rendered(storage_conn_id)
        self.storage_options = storage_options
        self.participant_conn_ids: Mapping[str, str] | None = as_rendered(participant_conn_ids)
        self.outputs: Sequence[Mapping[str, Any]] | str | None = as_rendered(outputs)
        self.guarantee: str = as_rendered(guarantee)
        self.consumer_group: str | None = as_rendered(consumer_group)
        self.policy = policy or CheckpointPolicy()
        self.restart_delay: timedelta = taken("restart_delay", restart_delay)
        interval, self.restart = self.policy.beside(
            trigger_interval=taken("trigger_interval", trigger_interval),
            max_restarts=taken("max_restarts", max_restarts),
            restart_delay=self.restart_delay,
        )
        self.budget = TimeoutBudget(
            interval,
            taken("batch_within", batch_within),
            taken("recover_within", recover_within),
            taken("transaction_timeout", transaction_timeout),
        )
        self.recover_before_start = recover_before_start
        self.drain_timeout: timedelta = taken("drain_timeout", drain_timeout)
        self.patience: timedelta = taken("patience", patience)
        self.submit_timeout: timedelta = taken("submit_timeout", submit_timeout)
        self.cancel = cancel
        if deferrable is None:
            deferrable = airflow_conf.getboolean("operators", "default_deferrable", fallback=False)
        self.deferrable = deferrable
        self.poke_interval: timedelta = taken("poke_interval", poke_interval)
