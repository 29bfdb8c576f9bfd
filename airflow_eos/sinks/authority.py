"""What a driver may rely on: that it is the newest, and that it evaluates what Spark's log says.

Asked twice a batch: after Spark has planned it and before the first task (a superseded driver's
tasks would overwrite Spark's state files), and after the decision that is relied on was created or
read, before anything becomes visible.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from airflow_eos.checkpoint import Decision, OffsetLog, Tenure
from airflow_eos.checkpoint.pipeline import owner_of
from airflow_eos.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from airflow_eos.protocol.participant import Owner

_STARTED_WITHIN_S = 60.0


class Notes(Protocol):
    """Where it is remembered outside the checkpoint what was relied on."""

    def note(self, decision: Decision, owner: Owner) -> None:
        """Note it, and wait until that is acknowledged."""
        ...


class Authority:
    """One driver's right to deliver.

    Args:
        tenure: its term.
        offsets: Spark's offset log, held against the decisions.
        notes: the note of what it delivers; see :mod:`airflow_eos.kafka.transactions.ownership`.
        evaluated_at: Spark's time stamp (ms) of the batch that it evaluates now.
    """

    def __init__(
        self,
        tenure: Tenure,
        offsets: OffsetLog,
        notes: Notes,
        *,
        evaluated_at: Callable[[int], int],
    ) -> None:
        self._tenure = tenure
        self._owner = owner_of(tenure.store)
        self._offsets = offsets
        self._notes = notes
        self._evaluated_at = evaluated_at
        self._is_first = True
        self._syncing = ThreadPoolExecutor(1, thread_name_prefix="airflow-eos-sync")
        self._durable: Future[None] = Future()

    @property
    def term(self) -> int:
        """The number of the term."""
        return self._tenure.term.number

    def begin(self, batch_id: int) -> str:
        """Look before the first task; returns the ``offsets/N`` that the batch is evaluated with.

        The log is read before the look: what a newer driver repairs in between, the look finds.

        Raises:
            SupersededError: do nothing, not even clean up.
        """
        content = self._offsets.evaluated(batch_id, self._evaluated_at(batch_id))
        if self._is_first:
            # Where Spark began to read: later batches follow from this one in its own memory.
            # Where this batch was promised before, its promise is compared with ``content``.
            if batch_id:
                self._offsets.require_begins_where_promised(batch_id)
            self._is_first = False
        self._tenure.require(batch_id)
        # Beside the tasks, which take longer than a disk.
        self._durable = self._syncing.submit(self._offsets.make_durable, batch_id)
        return content

    def require_durable(self) -> None:
        """Wait until what a decision of the running batch rests on would outlive a power cut.

        Raises:
            StoreError: it would not.
        """
        self._durable.result()

    def require(self, batch_id: int) -> None:
        """Look again; see :meth:`~airflow_eos.checkpoint.terms.Tenure.require`."""
        self._tenure.require(batch_id)

    def confirm(self, decision: Decision) -> None:
        """Note what stands decided, then look, before its first commit.

        In this order, and a starting driver takes its term before it reads the notes: so either it
        reads this one, or we see its term. The other way round, a driver that starts on an older
        copy of the checkpoint, put back in place, could miss the note of a driver that missed it.

        Raises:
            SupersededError: end nothing, delete nothing: somebody may rely on what stands.
            KafkaError: the note was not acknowledged; the next start settles the decision.
        """
        self._notes.note(decision, self._owner)
        self._tenure.require(decision.batch_id)


class Evaluation:
    """What Spark evaluates now. Its public API tells that only once the batch has ended.

    ``StreamExecution.lastExecution`` is the ``IncrementalExecution`` of the running batch; both
    methods are there in Spark 4.0 to 4.2, where the classes have moved between packages.
    """

    def __init__(self) -> None:
        self._query: Future[StreamingQuery] = Future()

    def of(self, query: StreamingQuery) -> None:
        """Told once the query has started; its first batch may be earlier and waits for this."""
        self._query.set_result(query)

    def at(self, batch_id: int) -> int:
        """Spark's time stamp of the batch, ms since the epoch: ``batchTimestampMs``.

        Raises:
            ConfigurationError: this Spark does not tell it.
        """
        query = self._query.result(_STARTED_WITHIN_S)
        try:
            execution = query._jsq.streamingQuery().lastExecution()  # noqa: SLF001 - see above
            found, planned_at_ms = (
                execution.currentBatchId(),
                execution.offsetSeqMetadata().batchTimestampMs(),
            )
        except Exception as error:
            raise ConfigurationError(
                "This Spark does not tell which batch it evaluates (StreamExecution.lastExecution)."
                " Expected Spark 4.0 to 4.2: use one of these, or a newer airflow-provider-eos."
            ) from error
        if found != batch_id:
            raise ConfigurationError(
                f"Spark calls for batch {batch_id} while it evaluates batch {found}: expected "
                "micro-batches, one at a time. Leave asynchronous progress tracking off."
            )
        return int(planned_at_ms)
