"""Does prepared work run out of time, hold locks for too long, or hold up a topic's readers?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue

from airflow_eos.arguments import Duration, milliseconds, taken
from airflow_eos.hooks.arguments import as_rendered, no_retry_where_useless
from airflow_eos.sensors.deferring import LookOnceSensor

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

    from airflow_eos.supervision.progress import BlockedWatch, SeenOpen, TimeoutWatch
    from airflow_eos.triggers.polling import PollingTrigger


class TransactionTimeoutSensor(LookOnceSensor):
    """Fires when prepared or open work has less than a part of its timeout left.

    The broker aborts it at the end of its timeout, promised or not; until then every
    ``read_committed`` reader of its partitions waits. So this is the moment for recovery, while
    promised rows need not be replayed yet. Returns (XCom) the open work, the most urgent first:
    ``participant``, ``key``, ``age_ms``, ``timeout_ms`` and ``time_left_ms``.

    While nothing runs out of time the sensor waits until its ``timeout``; with ``soft_fail`` that
    is a skip, which is what a watchdog wants.

    How old the work is, its own system tells: a cluster whose clock may be asked for (Describe on
    Cluster, and KRaft), a database. Elsewhere it counts from where this sensor saw it first.

    Args:
        checkpoint_location: of the pipeline, whose participants are all looked at (templated).
        transactional_id_prefix: looked at besides them, where the checkpoint does not name it, as
            before the first start (templated).
        kafka_config_id: connection of the cluster that the pipeline *writes* to (templated).
        part_left: above 0 and up to 1; 0.5 fires at half time.
        max_age: for systems that end nothing by themselves, as Postgres, whose prepared
            transactions hold locks; fires for what is older.
        participant_conn_ids: connections of the pipeline's other participants, by name or kind
            (templated).
        storage_conn_id: connection of the checkpoint's object store, of type ``aws``,
            ``google_cloud_platform`` or ``wasb``; None leaves it to the environment (templated).
        storage_options: further options of that store, such as ``aws_region``; no secrets.
        deferrable: wait in the triggerer, without a worker slot; as ``[operators]
            default_deferrable`` says where it is not given.
    """

    template_fields: Sequence[str] = (
        "checkpoint_location",
        "transactional_id_prefix",
        "kafka_config_id",
        "storage_conn_id",
        "participant_conn_ids",
    )
    ui_color = "#f4d6cc"
    seen: SeenOpen | None = None
    """What this process has seen, for systems that do not tell their time."""

    def __init__(
        self,
        *,
        checkpoint_location: str | XComArg | None = None,
        transactional_id_prefix: str | XComArg | None = None,
        part_left: float = 0.5,
        max_age: Duration = timedelta(minutes=10),
        participant_conn_ids: Mapping[str, str] | XComArg | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.checkpoint_location: str | None = as_rendered(checkpoint_location)
        self.transactional_id_prefix: str | None = as_rendered(transactional_id_prefix)
        self.part_left = part_left
        self.max_age: timedelta = taken("max_age", max_age)
        self.participant_conn_ids: Mapping[str, str] | None = as_rendered(participant_conn_ids)

    def poke(self, context: Context) -> PokeReturnValue:  # noqa: ARG002 - Airflow's signature
        """Look for transactions that run out of time."""
        from airflow_eos.supervision.progress import SeenOpen

        self.seen = self.seen or SeenOpen()
        with no_retry_where_useless():
            found = self._watch().look(*self._settings(), self._reach(), self.seen)
        for each in found:
            self.log.warning(
                "%s of %s has %d ms left, and is %d ms old",
                each["key"],
                each["participant"],
                each["time_left_ms"],
                each["age_ms"],
            )
        return PokeReturnValue(bool(found), found or None)

    def _trigger(self) -> type[PollingTrigger]:
        from airflow_eos.triggers.polling import TransactionTimeoutTrigger

        return TransactionTimeoutTrigger

    def _watch(self) -> TimeoutWatch:
        from airflow_eos.supervision.progress import TimeoutWatch

        return TimeoutWatch(
            prefix=self.transactional_id_prefix,
            checkpoint=self.checkpoint_location,
            part_left=self.part_left,
            max_age_ms=milliseconds(self.max_age),
        )


class BlockedTopicSensor(LookOnceSensor):
    """Fires when a transaction, of any program, has held the readers of a topic up for too long.

    Every ``read_committed`` reader of a partition waits for the oldest transaction that is open
    there, whoever wrote it. Returns (XCom) each partition that is held up, as ``airflow-eos blocked
    --json`` has it: the transaction, whose it is by the form of its id, its age and its state, and
    how much each consumer group waits for.

    While nothing is held up the sensor waits until its ``timeout``; with ``soft_fail`` that is a
    skip.

    Args:
        topics: one or several, looked at whoever writes them (templated).
        max_age: fires for what is older; above what a batch of your own takes.
        kafka_config_id: connection of their cluster (templated).
        deferrable: wait in the triggerer, without a worker slot; as ``[operators]
            default_deferrable`` says where it is not given.
    """

    template_fields: Sequence[str] = ("topics", "kafka_config_id")
    ui_color = "#f4d6cc"

    def __init__(
        self,
        *,
        topics: str | Sequence[str] | XComArg,
        max_age: Duration = timedelta(minutes=15),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topics: str | Sequence[str] = as_rendered(topics)
        self.max_age: timedelta = taken("max_age", max_age)

    def poke(self, context: Context) -> PokeReturnValue:  # noqa: ARG002 - Airflow's signature
        """Look for transactions that hold readers up."""
        with no_retry_where_useless():
            found = self._watch().look(self._settings()[0])
        for each in found:
            self.log.warning(
                "readers of %s-%s stand at offset %s: %s transaction %s, %s ms old",
                each["topic"],
                each["partition"],
                each["stable"],
                each["owner"] or "somebody's",
                each["transactional_id"] or f"of producer {each['producer_id']}",
                each["age_ms"],
            )
        return PokeReturnValue(bool(found), found or None)

    def _trigger(self) -> type[PollingTrigger]:
        from airflow_eos.triggers.polling import BlockedTopicTrigger

        return BlockedTopicTrigger

    def _watch(self) -> BlockedWatch:
        from airflow_eos.supervision.progress import BlockedWatch

        topics = (self.topics,) if isinstance(self.topics, str) else tuple(self.topics)
        return BlockedWatch(topics=topics, max_age_ms=milliseconds(self.max_age))
