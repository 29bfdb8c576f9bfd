"""The time that the tasks of a batch may take; a batch that takes longer fails like any other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import structlog

from airflow_eos.errors import BatchTimeoutError, ConfigurationError

if TYPE_CHECKING:
    from pyspark import SparkContext

T = TypeVar("T")
log = structlog.get_logger(__name__)

_AGAIN_S = 0.5
_ENDED_WITHIN_S = 10.0
_LOOK_S = 0.1


def within(
    timeout: timedelta, run: Callable[[], T], cancel: Callable[[], None], wait: Callable[[], None]
) -> T:
    """What ``run`` returns, if it does so in time.

    ``cancel`` is called again and again until ``run`` has ended: it ends the jobs that run now, and
    a batch may start another one. Nothing is cancelled any more once this has returned.

    Args:
        timeout: for ``run``.
        run: the work.
        cancel: makes it end early; called from another thread.
        wait: returns once what was cancelled has ended.

    Raises:
        BatchTimeoutError: it ended, in whatever way, after its time.
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
    """The Spark tasks of the running batch: all jobs of a run have its id as their group.

    Raises:
        ConfigurationError: this Spark gives them none.
    """

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        group = context.getLocalProperty("spark.jobGroup.id")
        if group is None:
            raise ConfigurationError(
                "This Spark runs the batch without a job group, so that it cannot be cancelled. "
                "Expected Spark 4.0 to 4.2: use one of these, or leave out the policy's timeout."
            )
        self._group = group
        self._before = set(context.statusTracker().getJobIdsForGroup(self._group))

    def cancel(self) -> None:
        """End its jobs; called again where another one follows."""
        self._context.cancelJobGroup(self._group)

    def wait(self) -> None:
        """Until none runs any more, or for some seconds; what ends later, the next start finds."""
        deadline = time.monotonic() + _ENDED_WITHIN_S
        while self._running() and time.monotonic() < deadline:
            time.sleep(_LOOK_S)

    def _running(self) -> int:
        tracker = self._context.statusTracker()
        jobs = set(tracker.getJobIdsForGroup(self._group)) - self._before
        told = [tracker.getJobInfo(job) for job in jobs]
        stages = [tracker.getStageInfo(each) for job in told if job for each in job.stageIds]
        return sum(stage.numActiveTasks for stage in stages if stage)
