"""At least once and at most once (no transaction, no decision), and a change of the guarantee.

Each batch is marked before it is written, for the other guarantees: a driver of another guarantee
takes a term before it looks for the mark, and a driver here looks for a newer term after it has
made the mark, so one of the two finds the other. A start takes a term as well: a driver that sleeps
while another one goes on, for however many batches, begins none of them again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

from airflow_eos.core.checkpoint import DecisionLog, OffsetLog, take_term
from airflow_eos.core.checkpoint.backend import visibility_marker_path
from airflow_eos.core.checkpoint.decisions import sealed
from airflow_eos.core.checkpoint.pipeline import read_pipeline
from airflow_eos.core.checkpoint.progress import read_state
from airflow_eos.core.checkpoint.snapshot import unknown_beginning
from airflow_eos.core.checkpoint.terms import newest_term
from airflow_eos.core.delivery.batch_timeout import retained_batches
from airflow_eos.core.delivery.outputs import InPlanSink
from airflow_eos.core.delivery.port import PROGRESS, BatchFunction
from airflow_eos.core.delivery.replay import promise_in_flight
from airflow_eos.core.delivery.start_option import GuaranteeOption
from airflow_eos.core.delivery.takeover import leave_nothing_open
from airflow_eos.core.delivery.visibility_markers import VisibilityMarkers
from airflow_eos.core.failpoints import failpoint
from airflow_eos.core.log import Log
from airflow_eos.core.protocol.decision import AT_A_START
from airflow_eos.core.protocol.promise import Promise
from airflow_eos.errors import EosError, OwnershipError, SupersededError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_eos.core.checkpoint import CheckpointStore, Phase, Tenure
    from airflow_eos.core.checkpoint.mend import Mend
    from airflow_eos.core.delivery.input_check import InputCheck
    from airflow_eos.core.delivery.port import BatchSink
    from airflow_eos.core.delivery.start_option import Start

Marked = TypeVar("Marked", bound="MarkedBatch")


class MarkedBatch(BatchFunction):
    """The function given to ``foreachBatch``; see ``ExactlyOnceBatch`` for its arguments.

    Args:
        sink: writes the rows, visible at once.
        visibility_markers: the driver's marks, and those that the tasks of ``sink`` look for, where
            they do.
        tenure: our term: marks are pruned, so a driver that slept may find a place empty.
        retained: the number of batches that Spark's logs go back.
        on_phase: called with (batch, phase) as the batch goes on; for the heartbeat.
    """

    def __init__(
        self,
        sink: BatchSink,
        visibility_markers: VisibilityMarkers,
        tenure: Tenure,
        *,
        retained: int,
        on_phase: Callable[[int, Phase], None],
    ) -> None:
        self._sink = sink
        self._visibility_markers = visibility_markers
        self._tenure = tenure
        self._retained = retained
        self._on_phase = on_phase

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write the rows of a batch, and prune the marks of a batch that Spark runs no more.

        Raises:
            SupersededError: another driver has started since; nothing was written.
        """
        self._on_phase(batch_id, "preparing")
        self._write(df, batch_id)
        self._visibility_markers.prune(batch_id - self._retained)
        self._on_phase(batch_id, "waiting")

    @abstractmethod
    def _write(self, df: DataFrame, batch_id: int) -> None:
        """Mark the batch, refuse it where a newer driver has started, and write its rows."""


class AtLeastOnceBatch(MarkedBatch):
    """A batch whose rows are visible at once, and again if the batch runs again.

    ``sink`` is a :class:`~airflow_eos.core.delivery.outputs.InPlanSink`: nothing is ever replayed.
    """

    def _write(self, df: DataFrame, batch_id: int) -> None:
        self._visibility_markers.begin_again(batch_id)
        self._require_newest(batch_id)
        self._sink.prepare(df)
        failpoint("written")

    def _require_newest(self, batch_id: int) -> None:
        newest = newest_term(self._visibility_markers.store)
        if newest > self._tenure.term.number:
            raise SupersededError(
                f"Batch {batch_id}, driver with at_least_once: another driver has started since, "
                f"with term {newest}. Nothing of this batch was written here. Keep one of the two."
            )


# --- at most once ---------------------------------------------------------------------------------
# At most once: rows may be missing after a crash, and none comes twice.
#
# A batch is marked as spent before any of its rows is written, so nobody writes it again; a task
# that runs again writes nothing (:class:`~airflow_eos.core.delivery.task.SinkTask`). Nothing is
# prepared.


log = Log(__name__)


class AtMostOnceBatch(MarkedBatch):
    """A batch whose rows are visible at once, or never where some may have been written before."""

    def _write(self, df: DataFrame, batch_id: int) -> None:
        first = self._visibility_markers.begin(batch_id)
        self._tenure.require(batch_id)
        failpoint("spent")
        rows = self._sink.rows(df)
        if first:
            self._sink.prepare(rows)
            failpoint("written")
        else:
            log.warning(
                "batch_given_up", batch=batch_id, reason="it was begun before, and not ended"
            )
            self._sink.prepare(rows, only=())  # Spark's state and watermark of it must exist


def may_be_visible(store: CheckpointStore) -> bool:
    """Whether rows of the batch in flight may be visible, although no decision promises them."""
    batch = read_state(store).in_flight
    return batch is not None and store.head(visibility_marker_path(batch)) is not None


# --- their starts ---------------------------------------------------------------------------------
# A change of a checkpoint's guarantee: what is refused, and how a former driver is stopped.
#
# For the batch in flight a *mark* says that some rows may be visible, a COMMIT decision that some
# may be, or will be. Where both stand, the mark is of a driver that was superseded and wrote
# nothing: a driver that decides has looked for marks after it took its term, and a driver that
# marks looks for newer terms after it has marked.


class AtLeastOnce(GuaranteeOption):
    """Rows that are visible at once, and again where their batch runs again."""

    def __init__(self, checked: InputCheck) -> None:
        self._checked = checked

    def refuse(self, store: CheckpointStore) -> None:
        """Refuse to write behind a consumer group, and what a decision has promised.

        Only decisions move a group's offsets. A drained pipeline is recorded there too, and a start
        from the group without the checkpoint would read again what was written since.

        Some of a promise may be visible by now, and the rest can be committed by any later
        recovery: its rows would come twice for good.

        Raises:
            OwnershipError: the pipeline has a group, or the batch in flight was promised.
        """
        pipeline = read_pipeline(store)
        for each in pipeline.participants if pipeline is not None else ():
            if each.name == PROGRESS:
                raise OwnershipError(
                    f"{store.location} belongs to a pipeline whose progress {each} shows, which "
                    "only exactly_once moves on: a start from the group would read again what "
                    "at_least_once writes meanwhile. Take a new checkpoint location for "
                    "at_least_once, or go on with exactly_once."
                )
        if promise_in_flight(store):
            raise OwnershipError(
                f"{store.location}: the batch in flight was promised with exactly_once, and some "
                "of it may be visible or may be committed yet; at_least_once would write it again. "
                "Start once more with exactly_once (availableNow will do) until that batch is "
                "over, and change the guarantee then; or take a new checkpoint location."
            )

    def take_term(self, start: Start, _after: int | None) -> Tenure:
        """See :func:`take_turn`."""
        return take_turn(start.store, driver=start.driver, unreadable=self._checked.mends)

    def batch(self, start: Start, tenure: Tenure) -> AtLeastOnceBatch:
        """Return the function that marks a batch, and writes it."""
        return _marked(AtLeastOnceBatch, InPlanSink(start.sink), start, tenure)


class AtMostOnce(GuaranteeOption):
    """Rows that are visible at once, and never where some of their batch may have been before."""

    def refuse(self, store: CheckpointStore) -> None:
        """Refuse a checkpoint whose batch in flight may have been delivered exactly once.

        Except where that batch was begun with another guarantee, and never promised: exactly_once
        refuses the batch, and some driver must be able to end it.

        Raises:
            OwnershipError: a driver with decisions has run there, or nobody knows which driver.
        """
        if (unknown := unknown_beginning(store)) is not None:
            raise unknown
        if read_pipeline(store) is None or (may_be_visible(store) and not promise_in_flight(store)):
            return
        raise OwnershipError(
            f"{store.location} belongs to a pipeline that delivers exactly once: the batch in "
            "flight may be promised, and would come twice. Take a new checkpoint location for "
            "at_most_once, or go on with exactly_once."
        )

    def take_term(self, start: Start, _after: int | None) -> Tenure:
        """See :func:`take_turn`."""
        return take_turn(start.store, driver=start.driver)

    def batch(self, start: Start, tenure: Tenure) -> AtMostOnceBatch:
        """Return the function that marks a batch as spent, and writes it where nobody has."""
        is_in_plan = not may_be_visible(start.store)
        sink = InPlanSink(start.sink) if is_in_plan else start.sink
        return _marked(AtMostOnceBatch, sink, start, tenure)


def _marked(kind: type[Marked], sink: BatchSink, start: Start, tenure: Tenure) -> Marked:
    _end_what_was_prepared(start, tenure)
    return kind(
        start.wrapped(sink),
        start.sink.visibility_markers or VisibilityMarkers(start.store),
        tenure,
        retained=retained_batches(start.spark),
        on_phase=start.heartbeat.enter_phase,
    )


def _end_what_was_prepared(start: Start, tenure: Tenure) -> None:
    """Abort what a driver with decisions has prepared: no batch of this guarantee lists it.

    Rows that are written at once would be seen only when its timer ends it, if one does. Errors are
    logged: a recovery ends it.
    """
    if read_pipeline(start.store) is None:
        return
    try:
        participant = start.sink.connect(start.settings.interval)
    except EosError:  # a right, say, that this guarantee needs no more
        log.exception("left_open", hint="`airflow-eos recover` ends it")
        return
    with closing(participant):
        leave_nothing_open(tenure, participant, start.driver)


def take_turn(
    store: CheckpointStore, *, driver: str, unreadable: Callable[[], Iterable[Mend]] = tuple
) -> Tenure:
    """Take the term, and the attempt that a sleeping driver may be about to decide.

    The term stops that driver from showing anything; but a promise that it left behind would be
    settled by the next driver with decisions, long after the rows were written here.

    Where that driver has decided before, no attempt is taken: the caller looks for that afterwards.
    """
    tenure = take_term(store, taken_by=driver)
    OffsetLog(store, DecisionLog(store)).repair(unreadable)
    batch = read_state(store).in_flight if read_pipeline(store) is not None else None
    log = DecisionLog(store)
    while batch is not None:
        decided = log.of_batch(batch)
        if Promise.of(decided) is not None or log.record(
            sealed(
                batch,
                len(decided) + 1,
                reason=f"{AT_A_START} with another guarantee",
                decided_by=driver,
                term=tenure.term.number,
            )
        ):
            break
    return tenure
