"""Where at-least-once is enough: no transaction, no decision."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_eos.errors import OwnershipError
from airflow_eos.failpoints import failpoint
from airflow_eos.sinks.replay import promise_in_flight

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_eos.checkpoint import CheckpointStore, Phase
    from airflow_eos.sinks.port import BatchSink


class AtLeastOnceBatch:
    """The function given to ``foreachBatch``; see ``ExactlyOnceBatch`` for its arguments.

    ``sink`` is a :class:`~airflow_eos.sinks.planned.PlannedSink`: nothing is ever replayed.
    """

    def __init__(self, sink: BatchSink, *, on_phase: Callable[[int, Phase], None]) -> None:
        self._sink = sink
        self._on_phase = on_phase

    def streamed(self, df: DataFrame) -> DataFrame:
        """What the streaming query computes of ``df`` for this function."""
        return self._sink.streamed(df)

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write the rows; visible at once, and again if the batch runs again."""
        self._on_phase(batch_id, "preparing")
        self._sink.prepare(df)
        failpoint("written")
        self._on_phase(batch_id, "waiting")


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
