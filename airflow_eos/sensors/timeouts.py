"""Does a transaction run out of time?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue

from airflow_eos.errors import ConfigurationError
from airflow_eos.hooks.failures import no_retry_where_useless
from airflow_eos.sensors.deferring import LookOnceSensor

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_eos.supervision.watch import TimeoutWatch
    from airflow_eos.triggers.polling import PollingTrigger


class TransactionTimeoutSensor(LookOnceSensor):
    """Fires when a prepared or open transaction has less than a part of its timeout left.

    The broker aborts it at the end of its timeout, promised or not; until then every
    ``read_committed`` reader of its partitions waits. So this is the moment for recovery, while
    promised rows need not be replayed yet. Returns (XCom) the open work, the most urgent first:
    ``participant``, ``key``, ``age_ms``, ``timeout_ms`` and ``time_left_ms``.

    While nothing runs out of time the sensor waits until its ``timeout``; with ``soft_fail`` that
    is a skip, which is what a watchdog wants.

    Args:
        checkpoint_location: of the pipeline, whose prefix is looked up (templated).
        transactional_id_prefix: instead of that (templated).
        kafka_config_id: connection of the cluster that the pipeline *writes* to (templated).
        part_left: above 0 and up to 1; 0.5 fires at half time.
        storage_conn_id: connection of the checkpoint's object store, of type ``aws``,
            ``google_cloud_platform`` or ``wasb``; None leaves it to the environment (templated).
        storage_options: further options of that store, such as ``aws_region``; no secrets.
        deferrable: wait in the triggerer, without a worker slot.
    """

    template_fields: Sequence[str] = (
        "checkpoint_location",
        "transactional_id_prefix",
        "kafka_config_id",
        "storage_conn_id",
    )
    ui_color = "#f4d6cc"

    def __init__(
        self,
        *,
        checkpoint_location: str | None = None,
        transactional_id_prefix: str | None = None,
        kafka_config_id: str = "kafka_default",
        part_left: float = 0.5,
        storage_conn_id: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        deferrable: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.checkpoint_location = checkpoint_location
        self.transactional_id_prefix = transactional_id_prefix
        self.kafka_config_id = kafka_config_id
        self.part_left = part_left
        self.storage_conn_id = storage_conn_id
        self.storage_options = storage_options
        self.deferrable = deferrable

    def poke(self, context: Context) -> PokeReturnValue:  # noqa: ARG002 - Airflow's signature
        """Look for transactions that run out of time."""
        with no_retry_where_useless():
            found = self._watch().look(*self._settings())
        for each in found:
            self.log.warning(
                "%s has %d ms left of %d ms",
                each["key"],
                each["time_left_ms"],
                each["timeout_ms"],
            )
        return PokeReturnValue(bool(found), found or None)

    def _trigger(self) -> type[PollingTrigger]:
        from airflow_eos.triggers.timeouts import TransactionTimeoutTrigger

        return TransactionTimeoutTrigger

    def _watch(self) -> TimeoutWatch:
        from airflow_eos.supervision.watch import TimeoutWatch

        if not 0 < self.part_left <= 1:
            raise ConfigurationError(
                f"part_left is {self.part_left}; expected above 0 and up to 1, such as 0.5."
            )
        return TimeoutWatch(
            prefix=self.transactional_id_prefix,
            checkpoint=self.checkpoint_location,
            part_left=self.part_left,
        )
