"""Rows that wait in the checkpoint, as the statements that their table was tried with.

Nothing is made in the user's database for them: no tool that dumps, replicates or watches it meets
a table that comes and goes. One object for each work: an Arrow stream whose values are pieces of
what was sent to the server, in their order, and what is sent again once it is decided.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from airflow_eos.core.checkpoint.decisions import opened_rows
from airflow_eos.errors import CheckpointFormatError, Remedy, StoreError
from airflow_eos.kinds.spill.participant import SpilledRows

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_eos.core.checkpoint.backend import StoredObject
    from airflow_eos.core.checkpoint.store import CheckpointStore
    from airflow_eos.core.protocol.decision import PreparedWork
    from airflow_eos.kinds.sql.keys import KeysOfName

KEPT = "kept"
"""The form of work whose rows wait in the checkpoint."""
DIGEST = "digest"
"""The key in a work's detail of the digest of its object."""


class KeptStatements(SpilledRows):
    """The objects of one participant's work, by the keys that its witnesses have.

    Args:
        store: the store of the checkpoint.
        name: the participant's name.
        keys: the keys of the name in the database.
    """

    def __init__(self, store: CheckpointStore, name: str, keys: KeysOfName) -> None:
        super().__init__(store, name)
        self._keys = keys

    def listed(self) -> list[StoredObject]:
        """List the objects that are there, ended or not."""
        found = self.store.list(f"{self.folder}/rows")
        return [each for each in found if self._keys.is_own(each.name)]

    def forget(self, keys: Sequence[str]) -> None:
        """Remove the objects of ended work; those already gone are no error."""
        self.store.delete([self._rows(key) for key in keys])

    def read_intact(self, work: PreparedWork) -> bytes | None:
        """Read the object of ``work``; None where it is gone (StoreError: it is another one)."""
        stream = self.read(work.key)
        if stream is not None and digest_of(stream) != work.detail[DIGEST]:
            where = self.location_of_rows(work.key)
            raise StoreError(
                f"{where} holds {len(stream)} bytes that are not those that were promised: it was "
                "damaged, or changed. Nothing of it was made visible.",
                Remedy(change=f"restore {where} from a copy of the checkpoint", start=True),
                Remedy(change=f"remove {where}: the app computes its rows again", start=True),
            )
        return stream

    def require_there(self, known: str | None) -> None:
        """Refuse a checkpoint whose mark is not the ``known`` one: missing rows say nothing.

        Raises:
            StoreError: the folder is gone, or is another one.
        """
        if known is None or self.instance_id() != known:
            raise StoreError(
                f"{self.location_of(self.folder)} is gone, or is another one than when this "
                "process began. Is the disk mounted here, or is this a part of a copy? Nothing was "
                "concluded from rows that are not there."
            )

    def _rows(self, key: str) -> str:
        return f"{self.folder}/rows/{self._keys.checked(key)}"


def kept_at(store: CheckpointStore | None, name: str, keys: KeysOfName) -> KeptStatements | None:
    """Return what a participant keeps in the checkpoint; None where it never kept anything."""
    if store is None:
        return None
    kept = KeptStatements(store, name, keys)
    return kept if kept.instance_id() is not None else None


def digest_of(stream: bytes) -> str:
    """Return the digest of an object, in hex digits."""
    return hashlib.sha256(stream).hexdigest()


def require_form(work: PreparedWork) -> None:
    """Refuse kept work of another release (CheckpointFormatError)."""
    if not isinstance(work.detail.get(DIGEST), str):
        raise CheckpointFormatError(
            f"Work {work.identity} has the detail {work.detail}: expected form and {DIGEST}. Was "
            "the checkpoint written by a newer release? Then use that one."
        )


def piece(data: bytes | memoryview) -> pa.RecordBatch:
    """Return a piece of what is sent to a server, as rows of the object."""
    import pyarrow as pa

    whole = pa.py_buffer(data)
    ends = pa.array([0, whole.size], pa.int64()).buffers()[1]
    column = pa.LargeBinaryArray.from_buffers(pa.large_binary(), 1, [None, ends, whole])
    return pa.RecordBatch.from_arrays([column], ["piece"])


def pieces_of(stream: bytes, where: str) -> Iterator[memoryview]:
    """Yield the pieces of an object in their order; only one is in memory at a time."""
    for batch in opened_rows(stream, where):
        for value in batch.column(0):
            yield memoryview(value.as_buffer())


def about(stream: bytes, where: str) -> dict[str, str]:
    """Return what is noted beside the pieces of an object."""
    found = opened_rows(stream, where).schema.metadata or {}
    return {name.decode(): value.decode() for name, value in found.items()}
