"""Where at-least-once is enough: no transaction, no decision, no term.

Each batch is marked before it is written (:mod:`airflow_eos.sinks.spent`), for the other two
guarantees: a driver of theirs takes a term before it looks for the mark, and here a newer term is
looked for after it was made, so one of the two finds the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_eos.checkpoint.terms import newest_term
from airflow_eos.errors import OwnershipError, SupersededError
from airflow_eos.failpoints import failpoint
from airflow_eos.sinks.replay import promise_in_flight

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_eos.checkpoint import CheckpointStore, Phase
    from airflow_eos.sinks.port import BatchSink
    from airflow_eos.sinks.spent import Marks


class AtLeastOnceBatch:
    """The function given to ``foreachBatch``; see ``ExactlyOnceBatch`` for its arguments.

    Args:
        sink: a :class:`~airflow_eos.sinks.planned.PlannedSink`: nothing is ever replayed.
        marks: the driver's; tasks look for none.
        retained: for how many batches Spark's logs go back.
        on_phase: told (batch, phase) as the batch goes on; for the heartbeat.
    """

    def __init__(
        self,
        sink: BatchSink,
        marks: Marks,
        *,
        retained: int,
        on_phase: Callable[[int, Phase], None],
    ) -> None:
        self._sink = sink
        self._marks = marks
        self._retained = retained
        self._on_phase = on_phase
        self._since = newest_term(marks.store)

    def streamed(self, df: DataFrame) -> DataFrame:
        """What the streaming query computes of ``df`` for this function."""
        return self._sink.streamed(df)

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write the rows; visible at once, and again if the batch runs again.

        Raises:
            SupersededError: a driver of another guarantee has started since; nothing was written.
        """
        self._on_phase(batch_id, "preparing")
        self._marks.begin_again(batch_id)
        self._require_no_term_since(batch_id)
        self._sink.prepare(df)
        failpoint("written")
        self._marks.prune(batch_id - self._retained)
        self._on_phase(batch_id, "waiting")

    def _require_no_term_since(self, batch_id: int) -> None:
        newest = newest_term(self._marks.store)
        if newest > self._since:
            raise SupersededError(
                f"Batch {batch_id}, driver with at_least_once: a driver of another guarantee has "
                f"started since, with term {newest}. Nothing of this batch was written here. Keep "
                "one of the two."
            )


def require_nothing_promised(store: CheckpointStore) -> None:
    """Refuse to write at once what a decision has promised: it would come twice for good.

    Some of the promise may be visible by now, and the rest can be committed by any later recovery.

    Raises:
        OwnershipError: the batch in flight was promised with exactly_once.
    """
    if promise_in_flight(store):
        raise OwnershipError(
            f"{store.location}: the batch in flight was promised with exactly_once, and some of it "
            "may be visible or may be committed yet; at_least_once would write it again. Start "
            "once more with exactly_once (availableNow will do) until that batch is over, and "
            "change the guarantee then; or take a new checkpoint location."
        )
