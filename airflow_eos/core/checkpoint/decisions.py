"""The decision log: one immutable object for each (batch, attempt), of which one create wins.

It makes delivery exactly-once: rows become visible only after a COMMIT decision that names their
work is durable, and nobody can decide the same attempt a second time.
"""

from __future__ import annotations

import hashlib
import re
import time
import uuid
from collections.abc import Collection, Sequence
from io import BytesIO
from typing import TYPE_CHECKING

from airflow_eos.core.checkpoint.backend import DECISIONS, EOS, decision_path
from airflow_eos.core.checkpoint.layout import batch_folders, newest_planned, numbers_in
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.protocol.decision import Decision, Verdict, check_name, encode, is_key
from airflow_eos.core.protocol.participant import decision_lost
from airflow_eos.errors import (
    CheckpointFormatError,
    RecoveryError,
    Remedy,
    StoreError,
    SupersededError,
)

if TYPE_CHECKING:
    import pyarrow as pa

_ATTEMPT = re.compile(r"([1-9][0-9]{0,8})\.json", re.ASCII)
_FOLDERS_ONE_BY_ONE = 100
"""The number of batches from which on listing all folders is cheaper than asking for each."""


class DecisionLog:
    """The decisions under ``eos/decisions/`` of one checkpoint."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._pruned_before: int | None = None

    def of_batch(self, batch_id: int) -> tuple[Decision, ...]:
        """Return every decision of the batch, by attempt: 1, 2, … without a gap.

        The caller may act upon the decisions: they are durable, also where another process wrote
        one a moment ago. Costs one listing and one read for each attempt.

        Raises:
            CheckpointFormatError: a foreign file, a gap, a decision in the wrong place, or one
                that cannot be read. Such a batch is never decided by guessing.
            SupersededError: a gap in a batch that is over: the asking driver has slept, and may
                have filled a place whose neighbours were pruned.
        """
        attempts = self._attempts(batch_id)
        if not _without_gap(attempts):
            # A listing that runs beside two creates may show the second without the first.
            attempts = self._attempts(batch_id)
        # Decisions are pruned only of a batch that two planned ones follow: see :meth:`prune`.
        if not _without_gap(attempts) and (newest_planned(self._store) or 0) > batch_id + 1:
            raise SupersededError(
                f"Batch {batch_id} is over and its decisions are being pruned: a later batch is "
                "planned. Nothing was made visible and nothing is lost. Another driver runs this "
                "checkpoint: keep one of the two."
            )
        if not _without_gap(attempts):
            raise CheckpointFormatError(
                f"{self._store.location}/{DECISIONS}/{batch_id} holds attempts {attempts}: "
                "expected 1, 2, … without a gap. A decision was lost or is foreign.",
                *decision_lost(batch_id),
            )
        return tuple(self._read(batch_id, attempt) for attempt in attempts)

    def record(self, decision: Decision) -> bool:
        """Create the decision; True when it stands, durable and for ever; False when another does.

        False also where the attempt before it is not there any more: the batch is over and its
        decisions are pruned. Where *no* attempt is left, a driver that slept finds the place empty
        and gets True; so nobody may act on a decision without looking again
        (:meth:`~airflow_eos.core.checkpoint.terms.Tenure.require`).

        Raises:
            StoreError: *unknown* whether the decision stands. Read :meth:`of_batch` before acting.
        """
        if decision.attempt > 1:
            before = decision_path(decision.batch_id, decision.attempt - 1)
            if self._store.head(before) is None:
                return False
        path = decision_path(decision.batch_id, decision.attempt)
        return self._store.create(path, encode(decision))

    def require_standing(self, decision: Decision) -> None:
        """Require that the noted decision stands: an older copy put back later will find the note.

        Raises:
            RecoveryError: the decision is gone.
        """
        if decision not in self.of_batch(decision.batch_id):
            raise RecoveryError(
                f"{self._store.location}: the decision of batch {decision.batch_id}, attempt "
                f"{decision.attempt} is gone since it was read: either the batch was completed and "
                "pruned meanwhile, or an older copy of the checkpoint was put back. Nothing was "
                "committed. Run recovery again."
            )

    def prune(self, before_batch: int) -> int:
        """Remove the decisions of batches below ``before_batch``; return the number of batches.

        Call it after each batch N with N - ``spark.sql.streaming.minBatchesToRetain``. The first
        call lists all folders, a later one touches only those that came since.
        """
        first = self._pruned_before
        if first is None or before_batch - first > _FOLDERS_ONE_BY_ONE:
            batches = batch_folders(self._store, DECISIONS)
        else:
            batches = list(range(first, before_batch))
        removed = sum(
            self._store.delete_folder(f"{DECISIONS}/{batch}")
            for batch in batches
            if batch < before_batch
        )
        self._pruned_before = max(before_batch, first or 0, 0)
        return removed

    def _attempts(self, batch_id: int) -> list[int]:
        return numbers_in(self._store, f"{DECISIONS}/{batch_id}", "attempt", _ATTEMPT)

    def _read(self, batch_id: int, attempt: int) -> Decision:
        path = decision_path(batch_id, attempt)
        where = f"{self._store.location}/{path}"
        decision = self._store.read(path, Decision)
        if decision is None:
            raise CheckpointFormatError(
                f"{where} was listed and is gone: decisions of a batch in flight are never "
                "deleted. Find out what deletes files there (a lifecycle rule?)."
            )
        if (decision.batch_id, decision.attempt) != (batch_id, attempt):
            raise CheckpointFormatError(
                f"{where} says batch {decision.batch_id}, attempt {decision.attempt}: it was "
                "copied or renamed. Restore the right file from a copy of the checkpoint."
            )
        self._store.make_durable(path)
        return decision


def sealed(
    batch_id: int, attempt: int, *, reason: str, decided_by: str, term: int | None = None
) -> Decision:
    """Return an ABORT, so that nobody can promise the attempt; ``term``: the sealing driver's."""
    return Decision(
        batch_id=batch_id,
        attempt=attempt,
        verdict=Verdict.ABORT,
        reason=reason,
        term=term,
        decided_by=decided_by,
        decided_at_ms=time.time_ns() // 1_000_000,
        nonce=uuid.uuid4().hex,
    )


def _without_gap(attempts: list[int]) -> bool:
    return attempts == list(range(1, len(attempts) + 1))


# --- perishable -----------------------------------------------------------------------------------
# Rows of work that its system may end by itself, kept in the checkpoint until readers have them.
#
# ``eos/kept/<name>/perishable/<batch>/<key>`` is what one task wrote for that participant, an Arrow
# stream. It is created, if absent, before the task reports: so it stands before any decision can
# name the work. It is read where the work was lost, and removed once its batch is over.


_KEPT = f"{EOS}/kept"
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


_SUM = b"sha256: "
_SUM_BYTES = len(_SUM) + hashlib.sha256().digest_size + len(_END_OF_STREAM)


def summed(stream: BytesIO) -> bytes:
    """Return a whole Arrow stream with its sum behind it, where a reader of streams never looks."""
    digest = hashlib.sha256(stream.getbuffer()).digest()
    stream.write(_SUM + digest + _END_OF_STREAM)
    return stream.getvalue()


def _is_damaged(stream: bytes) -> bool:
    """Whether the stream has other bytes than its sum is of; an older release wrote none."""
    rows, tail = memoryview(stream)[:-_SUM_BYTES], stream[-_SUM_BYTES:]
    return tail.startswith(_SUM) and not tail[len(_SUM) :].startswith(hashlib.sha256(rows).digest())


def opened_rows(stream: bytes, where: str, *remedies: Remedy) -> pa.RecordBatchStreamReader:
    """Open rows that were kept as an Arrow stream, all of them.

    Arrow takes a stream that was cut off between two of its messages for a shorter one, and bytes
    that a disk has changed for other values, or ends the process over them.

    Raises:
        StoreError: ``stream`` is no such stream, or not all of it.
    """
    import pyarrow as pa

    found: object = "their end is missing"
    if _is_damaged(stream):
        found = "their sum is another"
    elif stream.endswith(_END_OF_STREAM):
        try:
            return pa.ipc.open_stream(stream)
        except pa.ArrowInvalid as error:
            found = error
    raise StoreError(
        f"{where} holds {len(stream)} bytes that are not rows ({found}): truncated or foreign. "
        "Nothing was guessed.",
        *remedies,
    )


class PerishableRows:
    """The rows that tasks keep in a checkpoint because the participants' systems may end the work.

    Args:
        keeping: the names of participants whose rows the running query keeps.
    """

    def __init__(self, store: CheckpointStore, keeping: Collection[str] = ()) -> None:
        self._store = store
        self._keeping = keeping
        self._is_first = True

    def keep(self, name: str, batch: int, key: str, stream: bytes) -> None:
        """Store the rows of prepared work durably; its key was never used before.

        Raises:
            StoreError: the key was used before, or the store refuses.
        """
        path = _path(name, batch, key)
        if not self._store.create(path, stream):
            raise StoreError(f"{self._store.location}/{path} is there already: a key came twice.")

    def keys(self, name: str, batch: int) -> frozenset[str]:
        """Return the keys of the batch's work whose rows are there."""
        found = self._store.list(_path(name, batch))
        return frozenset(each.name for each in found if is_key(each.name))

    def read(self, name: str, batch: int, key: str) -> bytes:
        """Return the rows as the bytes that are stored.

        Raises:
            StoreError: the rows are gone, or cannot be read.
        """
        path = _path(name, batch, key)
        stream = self._store.get(path)
        if stream is None:
            raise StoreError(
                f"{self._store.location}/{path} was listed and is gone: promised rows that are "
                "kept are removed only once readers have them. Find out what deletes files there."
            )
        return stream

    def stream_of(self, name: str, batch: int, key: str) -> pa.RecordBatchStreamReader:
        """Open the rows, all of them; errors as :meth:`read`, and where the stream is not whole."""
        where = f"{self._store.location}/{_path(name, batch, key)}"
        instead = Remedy(
            change=f"remove {where}, so that the batch is evaluated again instead",
            start=True,
            costs="nothing where the query gives the same rows again, and else it says so",
        )
        return opened_rows(self.read(name, batch, key), where, instead)

    def listed(self, batch: int) -> Sequence[str]:
        """List the paths of a batch's kept rows; only a driver still the newest then may judge."""
        return [
            each.path
            for name in self._store.folders(_KEPT)
            for each in self._store.list(f"{_KEPT}/{name}/perishable/{batch}")
        ]

    def remove(self, paths: Sequence[str]) -> None:
        """Remove kept rows that no decision can name any more, by their paths."""
        self._store.delete(paths)

    def prune(self, batch: int) -> None:
        """Remove all rows that are kept of batches up to this one, which is over.

        The first call covers every participant, also those that keep nothing any more. Rows that a
        task keeps later, when nobody waits for it, go with the next batch.
        """
        names = self._store.folders(_KEPT) if self._is_first else self._keeping
        for name in names:
            folder = f"{_KEPT}/{name}/perishable"
            for found in batch_folders(self._store, folder):
                if found <= batch:
                    self._store.delete_folder(f"{folder}/{found}")
        self._is_first = False


def _path(name: str, batch: int, *key: str) -> str:
    return "/".join((_KEPT, check_name(name), "perishable", str(batch), *key))
