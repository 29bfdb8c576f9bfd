"""A checkpoint policy, applied to one start of a query and to the tasks of its batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import ConfigurationError
from airflow_eos.sinks.port import TaskReport
from airflow_eos.sinks.timed import BatchTasks, within
from airflow_eos.sinks.wrapped import WrappedSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_eos.sinks.policy import CheckpointPolicy
    from airflow_eos.sinks.port import Guarantee

_DEFAULT_TRIGGER = {"processingTime": "1 second"}
_RETAINED = "spark.sql.streaming.minBatchesToRetain"


@dataclass(frozen=True)
class GovernedSink(WrappedSink):
    """A sink whose tasks have so much time, and must have read what they were meant to read.

    Only what nobody has promised yet is timed. A batch whose decision stands must be settled in the
    end, however long a replay of it takes.

    A replay is not timed: what it prepares is that of a part of ``sink``.

    Attributes:
        sink: whose tasks they are.
        timeout: from the start of the batch's tasks until all of them have reported.
        confirm: called when they have; raises where the source is not what it was.
    """

    timeout: timedelta | None
    confirm: Callable[[], None]

    def prepare(self, rows: DataFrame, *, only: Collection[int] | None = None) -> list[TaskReport]:
        """See :meth:`BatchSink.prepare`.

        Raises:
            BatchTimeoutError: it took longer; its tasks have ended, or were told to.
            TopicError: a topic was made again while they read.
        """
        if self.timeout is None or only is not None:
            reports = self.sink.prepare(rows, only=only)
        else:
            tasks = BatchTasks(rows.sparkSession.sparkContext)
            reports = within(
                self.timeout, lambda: self.sink.prepare(rows), tasks.cancel, tasks.wait
            )
        self.confirm()
        return reports


def check_policy(policy: CheckpointPolicy, guarantee: Guarantee) -> None:
    """Refuse what does not go together.

    Raises:
        ConfigurationError: a timeout where the rows of a failed batch are never written.
    """
    if policy.timeout is not None and guarantee == "at_most_once":
        raise ConfigurationError(
            "A batch that is ended by its timeout is not run again with at_most_once: its rows "
            "would be missing. Leave the timeout out, or choose at_least_once or exactly_once."
        )


def chosen_trigger(
    trigger: Mapping[str, Any] | None, policy: CheckpointPolicy
) -> Mapping[str, Any]:
    """Spark's trigger, said in one of two ways.

    Raises:
        ConfigurationError: said in both.
    """
    if trigger is not None and policy.interval is not None:
        raise ConfigurationError(
            f"trigger {dict(trigger)!r} and the policy's interval {policy.interval} both say when "
            "a batch starts: leave one of them out."
        )
    return trigger or policy.trigger or _DEFAULT_TRIGGER


@contextmanager
def retaining(spark: SparkSession, policy: CheckpointPolicy) -> Iterator[None]:
    """A query that is started inside keeps as many batches as the policy says.

    Spark copies the session's configuration for each query, so the session gets its own back.
    """
    if policy.num_retained is None:
        yield
        return
    before = spark.conf.get(_RETAINED, None)
    spark.conf.set(_RETAINED, policy.num_retained)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_RETAINED)
        else:
            spark.conf.set(_RETAINED, before)


def retained_batches(spark: SparkSession) -> int:
    """How many batches Spark's logs go back in a query that is started now."""
    return int(spark.conf.get(_RETAINED) or 100)
