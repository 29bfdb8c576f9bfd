"""Where at-least-once is enough: no transaction and no decision.

Each batch is marked before it is written (:mod:`airflow_eos.sinks.spent`), for the other two
guarantees: a driver of theirs takes a term before it looks for the mark, and here a newer term is
looked for after it was made, so one of the two finds the other. A start takes a term as well: who
sleeps while another one goes on, for however many batches, begins none of them again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_eos.checkpoint.terms import newest_term
from airflow_eos.errors import SupersededError
from airflow_eos.failpoints import failpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_eos.checkpoint import Phase
    from airflow_eos.sinks.port import BatchSink
    from airflow_eos.sinks.spent import Marks


class AtLeastOnceBatch:
    """The function given to ``foreachBatch``; see ``ExactlyOnceBatch`` for its arguments.

    Args:
        sink: a :class:`~airflow_eos.sinks.planned.PlannedSink`: nothing is ever replayed.
        marks: the driver's; tasks look for none.
        term: ours, taken before it was looked whether anything is promised.
        retained: for how many batches Spark's logs go back.
        on_phase: told (batch, phase) as the batch goes on; for the heartbeat.
    """

    def __init__(
        self,
        sink: BatchSink,
        marks: Marks,
        *,
        term: int,
        retained: int,
        on_phase: Callable[[int, Phase], None],
    ) -> None:
        self._sink = sink
        self._marks = marks
        self._retained = retained
        self._on_phase = on_phase
        self._term = term

    def streamed(self, df: DataFrame) -> DataFrame:
        """What the streaming query computes of ``df`` for this function."""
        return self._sink.streamed(df)

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write the rows; visible at once, and again if the batch runs again.

        Raises:
            SupersededError: another driver has started since; nothing was written.
        """
        self._on_phase(batch_id, "preparing")
        self._marks.begin_again(batch_id)
        self._require_newest(batch_id)
        self._sink.prepare(df)
        failpoint("written")
        self._marks.prune(batch_id - self._retained)
        self._on_phase(batch_id, "waiting")

    def _require_newest(self, batch_id: int) -> None:
        newest = newest_term(self._marks.store)
        if newest > self._term:
            raise SupersededError(
                f"Batch {batch_id}, driver with at_least_once: another driver has started since, "
                f"with term {newest}. Nothing of this batch was written here. Keep one of the two."
            )
