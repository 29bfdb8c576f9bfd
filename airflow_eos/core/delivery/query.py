"""Spark's query as its user holds it, with drain and the batch's own errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import SupersededError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from airflow_eos.core.checkpoint import Phase
    from airflow_eos.core.delivery.beats import BeatLoop


_IDLE_LOOK_S = 0.02
_PAUSED_LOOK_S = 0.5
_AS_INTERRUPTED = (
    "The query was stopped within a batch, which the next start runs again. "
    "(py4j.protocol.Py4JJavaError: An error occurred while calling: java.lang.InterruptedException)"
)
"""What Spark knows a batch by that ended because its query was stopped; see ``GuardedBatch``."""


class Drained(Exception):  # noqa: N818 - not an error: the way to say "no further batch"
    """Raised instead of starting a batch once a drain was requested."""


class Stopped(Exception):  # noqa: N818 - not an error: the way to say "interrupted"
    """Raised in the place of what a stopped query's batch ends with; see ``GuardedBatch``."""


class GuardedBatch:
    """The batch function, run unless draining; keeps the Python error that Spark turns into text.

    Whether a stopped query was interrupted, Spark asks that text, by a regular expression that
    overflows the thread's stack (StackOverflowError, a thousand lines) where it is as long as that
    of a cancelled job. So it is told in one line.

    ``pause`` follows each batch: its rows are visible, and Spark plans the next batch after it. It
    comes before ``commits/N``, as nobody can wait between that and the next plan: a driver that
    dies in it leaves a batch that is settled, and is evaluated once more for its state.
    """

    def __init__(
        self,
        batch: Callable[[DataFrame, int], None],
        heartbeat: BeatLoop,
        pause: timedelta = timedelta(0),
    ) -> None:
        self._batch = batch
        self._heartbeat = heartbeat
        self._pause_s = pause.total_seconds()
        self.failure: BaseException | None = None
        self.drained = False
        """Whether a batch was left to the next start, which Spark reports as an error."""
        self.ending = threading.Event()
        """Set to end a pause early."""
        self.on_drained: Callable[[], None] = lambda: None
        """Called when a batch is left to the next start; then Spark plans and writes no more."""
        self.is_wanted: Callable[[], bool] = lambda: True
        """Whether nobody has stopped the query by Spark's own means, which wait for the pause."""

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Deliver the batch; see ``ExactlyOnceBatch``."""
        if self._heartbeat.draining.is_set():
            self.drained = True
            self.on_drained()
            raise Drained(f"batch {batch_id} waits for the next start")
        self._heartbeat.begin(batch_id)
        try:
            self._batch(df, batch_id)
        except BaseException as error:
            self.failure = error
            self._heartbeat.fail(batch_id, error)
            if not self.is_wanted():
                raise Stopped(_AS_INTERRUPTED) from None
            raise
        self._rest()

    def _rest(self) -> None:
        until = time.monotonic() + self._pause_s
        while (left := until - time.monotonic()) > 0 and self.is_wanted():
            if self.ending.wait(min(left, _PAUSED_LOOK_S)):
                return


class ExactlyOnceQuery:
    """A running query, with the names of Spark's ``StreamingQuery``."""

    def __init__(
        self,
        query: StreamingQuery,
        run: GuardedBatch,
        heartbeat: BeatLoop,
        resources: ExitStack,
    ) -> None:
        self._query = query
        self._run = run
        self._run.is_wanted = lambda: bool(query.isActive)
        self._run.on_drained = self._say_drained
        self._heartbeat = heartbeat
        self._resources = resources
        self._closing = threading.Lock()
        self._said = False
        threading.Thread(target=self._watch, name="airflow-eos-drain", daemon=True).start()

    def awaitTermination(self, timeout: int | None = None) -> bool:  # noqa: N802 - Spark's name
        """Wait until the query ends, at most ``timeout`` seconds; True when it has ended.

        A drained or stopped query ends normally.

        Raises:
            EosError: the error that ended the query, as raised by the batch.
            SupersededError: another driver has taken its place.
            StreamingQueryException: an error of Spark's own.
        """
        try:
            ended = self._query.awaitTermination(timeout)
        except Exception as error:
            if self._run.failure is None and self._run.drained:
                self._end_in_order()
                return True
            self._close("failed", self._run.failure or error)
            if self._run.failure is not None:
                raise self._run.failure from error
            raise
        if timeout is not None and not ended:
            return False
        self._end_in_order()
        return True

    def stop(self) -> None:
        """Stop the query now, within a batch if need be; the next start runs that batch again.

        A query that has ended by itself stays what it was: a failure that nobody has awaited must
        not be told as all that was to be read.
        """
        self._run.ending.set()
        if not self._query.isActive:
            with suppress(Exception):  # Spark's stop() raises nothing of it either
                self.awaitTermination()
        self._query.stop()
        self._close("stopped")

    def drain(self) -> None:
        """Stop the query after the running batch; returns at once, ``awaitTermination`` waits."""
        self._heartbeat.draining.set()

    def __getattr__(self, name: str) -> Any:
        """Return Spark's own attribute: status, lastProgress, id, runId, isActive, exception."""
        return getattr(self._query, name)

    def _watch(self) -> None:
        """Wait for a drain, then stop the query between two batches.

        A batch that starts in the meantime ends itself before it opens anything.
        """
        self._heartbeat.draining.wait()
        self._run.ending.set()
        while self._query.isActive:
            if not self._query.status["isTriggerActive"]:
                self._query.stop()
                return
            time.sleep(_IDLE_LOOK_S)

    def _say_drained(self) -> None:
        """Write the final heartbeat before Spark has stopped: a standby can start sooner."""
        if not self._heartbeat.superseded.is_set():
            self._say("stopped")
            self._heartbeat.hold_still()

    def _end_in_order(self) -> None:
        if self._heartbeat.superseded.is_set():
            error = SupersededError(
                "Another driver has taken this checkpoint over: this one ended between two "
                "batches. Nothing is lost; keep one of the two."
            )
            self._close("failed", error)
            raise error
        self._close("stopped")

    def _close(self, phase: Phase, error: BaseException | None = None) -> None:
        try:
            self._say(phase, error)
            self._heartbeat.hold_still()
        finally:
            with self._closing:
                self._resources.close()

    def _say(self, phase: Phase, error: BaseException | None = None) -> None:
        """Write the final heartbeat, once: the first call tells the end."""
        with self._closing:
            if not self._said:
                self._said = True
                self._heartbeat.stop(phase, error)
