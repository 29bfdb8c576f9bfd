"""Spark's offset log held against the decisions, which are right where the two differ.

Spark's ``add`` looks whether the name is free, writes beside it and renames; two drivers can both
do it, and the later rename stands, even after ``commits/N`` (S3A copies, which takes longer still).
A restart would then read another range than the one that was delivered, without complaint. So a
COMMIT decision keeps ``offsets/N`` as its attempt was evaluated with it:

* what the file says is believed only if its time stamp is the one Spark evaluated the batch with;
* a starting driver puts the newest two entries right, after it has taken its term;
* its first batch looks at both again, since a late rename may have come between that and Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.checkpoint.logs import parse_offsets
from airflow_eos.checkpoint.mending import damage, decided_offsets, mend
from airflow_eos.checkpoint.paths import COMMITS, METADATA, METADATA_COPY, OFFSETS, SOURCES
from airflow_eos.errors import SupersededError

if TYPE_CHECKING:
    from airflow_eos.checkpoint.decisions import DecisionLog
    from airflow_eos.checkpoint.store import CheckpointStore


class OffsetLog:
    """``offsets/`` of one checkpoint, as far as a driver relies on it."""

    def __init__(self, store: CheckpointStore, decisions: DecisionLog) -> None:
        self._store = store
        self._decisions = decisions
        self._durable: set[str] = set()

    def evaluated(self, batch_id: int, evaluated_at_ms: int) -> str:
        """The content of ``offsets/N`` with which this process evaluates the batch.

        Args:
            batch_id: N.
            evaluated_at_ms: Spark's time stamp of the batch that it evaluates now
                (``batchTimestampMs``, what ``current_timestamp()`` gives in it).

        Raises:
            SupersededError: the file is gone, or another driver's.
            CheckpointFormatError: the file cannot be read.
        """
        content = self._content(batch_id)
        if content is None:
            raise SupersededError(
                f"Batch {batch_id}: {OFFSETS}/{batch_id} is gone from {self._store.location} while "
                f"the batch runs. {_NEXT}"
            )
        where = f"{self._store.location}/{OFFSETS}/{batch_id}"
        written_for_ms = parse_offsets(content.encode(), where).batch_timestamp_ms
        if written_for_ms != evaluated_at_ms:
            raise SupersededError(
                f"Batch {batch_id}: {where} was planned at {written_for_ms}, but this driver "
                f"evaluates a batch planned at {evaluated_at_ms} (ms since the epoch): another "
                f"driver has replaced it. {_NEXT}"
            )
        return content

    def require_as_decided(self, batch_id: int) -> None:
        """The entry of the batch says what its first COMMIT decision says, if there is one.

        Raises:
            SupersededError: it says something else.
        """
        decided = decided_offsets(self._decisions, batch_id)
        if decided is not None and self._content(batch_id) != decided:
            raise SupersededError(
                f"{self._store.location}/{OFFSETS}/{batch_id} is not what batch {batch_id} was "
                f"delivered with: another driver has replaced it since this one started. {_NEXT}"
            )

    def repair(self) -> None:
        """Put right what Spark will read; only for a driver that has taken its term.

        See :mod:`.mending`. Older entries Spark never reads again.

        Raises:
            CheckpointFormatError: what it will read is lost for good.
        """
        mend(self._store, damage(self._store, self._decisions, starting=True))

    def make_durable(self, batch_id: int) -> None:
        """Sync what a decision of this batch rests on, on a disk: Spark syncs none of its files.

        What was there before the first batch of this run once, then what each batch adds. Not the
        state of the query, of which each task writes files.
        """
        if not self._store.is_on_a_disk:
            return  # a bucket answers what is durable; HDFS, what its data nodes have in memory
        new = {METADATA, f"{OFFSETS}/{batch_id}", f"{COMMITS}/{batch_id - 1}"}
        if not self._durable:
            self._keep_the_query_id()
            new |= {each.path for log in (OFFSETS, COMMITS) for each in self._store.list(log)}
        for source in self._store.folders(SOURCES):
            new |= {each.path for each in self._store.list(f"{SOURCES}/{source}")}
        self._store.make_durable(*sorted(new - self._durable))
        self._durable |= new

    def _keep_the_query_id(self) -> None:
        """Nothing else holds it, and events are told by it."""
        data = self._store.get(METADATA)
        if data and data != self._store.get(METADATA_COPY):
            self._store.put(METADATA_COPY, data)

    def _content(self, batch_id: int) -> str | None:
        data = self._store.get(f"{OFFSETS}/{batch_id}")
        return None if data is None else data.decode("utf-8", errors="replace")


_NEXT = (
    "Nothing of ours was made visible and nothing is lost. Make sure that no other driver runs "
    "this checkpoint, then start the query again: it takes the range that the decisions name."
)
