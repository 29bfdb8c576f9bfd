"""Who owns a name in a folder of data, and how far it delivered: files beside the data.

====================================  =========================================================
``<folder>/_eos/<name>/owner.json``   whose name it is: created if absent
``<folder>/_eos/<name>/notes/<n>``    the newest decision of one driver
====================================  =========================================================

Readers of Parquet, Delta's VACUUM and Iceberg's ``remove_orphan_files`` pass over names that begin
with ``_``.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_eos.errors import Remedy, StoreError
from airflow_eos.protocol.ownership import Note, Owner, Ownership

if TYPE_CHECKING:
    from airflow_eos.checkpoint.store import CheckpointStore
    from airflow_eos.protocol.decision import Decision

_OWNER = "owner.json"
_NOTES = "notes"


class KeptBeside:
    """What is remembered of one name outside the checkpoint.

    Args:
        kept: the folder of the name; see the module.
        called: the name, for people.
    """

    def __init__(self, kept: CheckpointStore, called: str) -> None:
        self._kept = kept
        self._called = called
        self._nonce = uuid.uuid4().hex

    def claim(self, owner: Owner) -> None:
        """Own the name: the first one to write it does."""
        self._kept.create(_OWNER, msgspec.json.encode(owner))

    def ownership(self, asking: Owner) -> tuple[Ownership, ...]:
        """See :class:`Ownership`."""
        del asking
        notes = (self._read(entry.path, Note) for entry in self._kept.list(_NOTES))
        return (
            Ownership(
                called=self._called,
                owner=self._read(_OWNER, Owner),
                notes=tuple(note for note in notes if note is not None),
                give_up=Remedy(change=self._give_up, start=True),
                move=Remedy(
                    change=f"remove {self._kept.location}/{_OWNER}, and nothing else there",
                    start=True,
                ),
            ),
        )

    def note(self, decision: Decision, owner: Owner) -> None:
        """Replace this process's note; a reader takes the highest of all of its pipeline."""
        note = Note.of(decision, owner)
        self._kept.put(f"{_NOTES}/{self._nonce}.json", msgspec.json.encode(note))

    @property
    def _give_up(self) -> str:
        """Never the whole folder: what is prepared, and may be promised, can lie there too."""
        at = self._kept.location
        return f"remove {at}/{_OWNER} and the folder {at}/{_NOTES}, and nothing else there"

    def _read(self, path: str, kind: type[Any]) -> Any:
        data = self._kept.get(path)
        try:
            return None if data is None else msgspec.json.decode(data, type=kind)
        except msgspec.MsgspecError as error:
            raise StoreError(
                f"{self._kept.location}/{path} cannot be read: {error}. It says who delivers as "
                f"{self._called}: restore it; or, if nobody does: {self._give_up}."
            ) from error
