"""A checkpoint policy, applied to one start of a query and to the tasks of its batches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_eos.core.delivery.outputs import WrappedSink
from airflow_eos.core.delivery.port import SPARK, TaskReport
from airflow_eos.core.delivery.start_option import StartOption
from airflow_eos.core.log import Log
from airflow_eos.errors import BatchTimeoutError, ConfigurationError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

    from airflow_eos.core.delivery.input_check import InputCheck
    from airflow_eos.core.delivery.policy import CheckpointPolicy
    from airflow_eos.core.delivery.port import BatchSink
    from airflow_eos.core.delivery.start_option import Start

T = TypeVar("T")
log = Log(__name__)

_AGAIN_S = 0.5
_ENDED_WITHIN_S = 10.0
_LOOK_S = 0.1


def within(
    timeout: timedelta, run: Callable[[], T], cancel: Callable[[], None], wait: Callable[[], None]
) -> T:
    """Return the result of ``run``, if it ends in time; cancel it otherwise.

    ``cancel`` is called again and again until ``run`` has ended: it ends the jobs that run now, and
    a batch may start another one. Nothing is cancelled any more once this function has returned.

    Args:
        timeout: the time that ``run`` may take.
        run: the work.
        cancel: makes ``run`` end early; called from another thread.
        wait: returns once the cancelled jobs have ended.

    Raises:
        BatchTimeoutError: ``run`` ended, in whatever way, after its time.
    """
    over, late = threading.Event(), threading.Event()

    def watch() -> None:
        if over.wait(timeout.total_seconds()):
            return
        late.set()
        while not over.is_set():
            try:
                cancel()
            except Exception:
                log.exception("not_cancelled", hint="tried again")
            over.wait(_AGAIN_S)

    watcher = threading.Thread(target=watch, name="airflow-eos-batch-timeout", daemon=True)
    watcher.start()
    try:
        result = run()
    except Exception as error:
        if late.is_set():
            wait()
            raise _too_late(timeout) from error
        raise
    finally:
        over.set()
        watcher.join()
    if late.is_set():
        raise _too_late(timeout)
    return result


def _too_late(timeout: timedelta) -> BatchTimeoutError:
    return BatchTimeoutError(
        f"The tasks of the batch took longer than {timeout.total_seconds():g} s (timeout of the "
        "CheckpointPolicy) and were cancelled. Nothing was decided or made visible, and nothing is "
        "lost: what they had prepared is aborted, and the next start runs the batch again, over "
        "the same range. If batches take that long, raise the timeout, give the app more cores, "
        "or make later batches smaller (maxOffsetsPerTrigger)."
    )


class BatchTasks:
    """The Spark tasks of the running batch: all jobs of a run have the run's id as their job group.

    Raises:
        ConfigurationError: this Spark gives the jobs no group.
    """

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        group = context.getLocalProperty("spark.jobGroup.id")
        if group is None:
            raise ConfigurationError(
                "This Spark runs the batch without a job group, so that it cannot be cancelled. "
                f"Expected {SPARK}: use one of these, or leave out the policy's timeout."
            )
        self._group = group
        self._before = set(context.statusTracker().getJobIdsForGroup(self._group))

    def cancel(self) -> None:
        """Cancel the batch's jobs; called again where another job follows."""
        self._context.cancelJobGroup(self._group)

    def wait(self) -> None:
        """Wait until no task runs, or some seconds; what ends later is found by the next start."""
        deadline = time.monotonic() + _ENDED_WITHIN_S
        while self._running() and time.monotonic() < deadline:
            time.sleep(_LOOK_S)

    def _running(self) -> int:
        tracker = self._context.statusTracker()
        jobs = set(tracker.getJobIdsForGroup(self._group)) - self._before
        told = [tracker.getJobInfo(job) for job in jobs]
        stages = [tracker.getStageInfo(each) for job in told if job for each in job.stageIds]
        return sum(stage.numActiveTasks for stage in stages if stage)


# --- a sink with a time limit ---------------------------------------------------------------------


_DEFAULT_TRIGGER = {"processingTime": "1 second"}
_RETAINED = "spark.sql.streaming.minBatchesToRetain"


@dataclass(frozen=True)
class GovernedSink(WrappedSink):
    """A sink whose tasks have a time limit, and whose source must not change while they read.

    Only a batch that nobody has promised yet is timed: a batch whose decision stands must be
    settled in the end, however long a replay of it takes.

    A replay is not timed: its rows are prepared by a part of ``sink``.

    Attributes:
        sink: the inner sink, whose tasks are timed.
        timeout: from the start of the batch's tasks until all have reported; None: no limit.
        confirm: called when all have reported; raises where the source is not what it was.
        is_decided: whether the batch is decided, and its first evaluation is confirmed for that.
    """

    timeout: timedelta | None
    confirm: Callable[[], None]
    is_decided: bool = False

    def prepare(self, rows: DataFrame, *, only: Collection[int] | None = None) -> list[TaskReport]:
        """See :meth:`BatchSink.prepare`.

        Raises:
            BatchTimeoutError: the tasks took longer; they have ended, or were told to.
            TopicError: a topic was made again while the tasks read.
        """
        if self.timeout is None or only is not None:
            reports = self.sink.prepare(rows, only=only)
        else:
            tasks = BatchTasks(rows.sparkSession.sparkContext)
            reports = within(
                self.timeout, lambda: self.sink.prepare(rows), tasks.cancel, tasks.wait
            )
        if only is not None or not self.is_decided:
            self.confirm()
        return reports


class PolicyOption(StartOption):
    """The policy of a start, whose input is looked at when a batch's tasks have reported."""

    def __init__(self, checked: InputCheck) -> None:
        self._checked = checked

    def examine(self, start: Start) -> None:
        """Refuse a policy and a guarantee that do not go together.

        Raises:
            ConfigurationError: a timeout with a guarantee that never writes a failed batch's rows.
        """
        if start.settings.policy.timeout is not None and start.sink.guarantee == "at_most_once":
            raise ConfigurationError(
                "A batch that is ended by its timeout is not run again with at_most_once: its rows "
                "would be missing. Leave the timeout out, or choose at_least_once or exactly_once."
            )

    def wrap(self, start: Start, sink: BatchSink) -> BatchSink:
        """Return the sink with its time limit."""
        is_decided, timeout = start.sink.guarantee == "exactly_once", start.settings.policy.timeout
        return GovernedSink(sink, timeout, self._checked.look, is_decided=is_decided)


def chosen_trigger(
    trigger: Mapping[str, Any] | None, policy: CheckpointPolicy
) -> Mapping[str, Any]:
    """Return Spark's trigger, from the argument or from the policy.

    Raises:
        ConfigurationError: both give a trigger.
    """
    if trigger is not None and policy.interval is not None:
        raise ConfigurationError(
            f"trigger {dict(trigger)!r} and the policy's interval {policy.interval} both say when "
            "a batch starts: leave one of them out."
        )
    return trigger or policy.trigger or _DEFAULT_TRIGGER


@contextmanager
def retaining(spark: SparkSession, policy: CheckpointPolicy) -> Iterator[None]:
    """Let a query that is started inside keep as many batches as the policy says.

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
    """Return how many batches Spark's logs go back in a query that is started now."""
    return int(spark.conf.get(_RETAINED) or 100)
