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

from airflow_eos.errors import StoreError
from airflow_eos.protocol.ownership import Note, Ownership, same_place

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_eos.checkpoint.store import CheckpointStore
    from airflow_eos.protocol.decision import Decision

_OWNER = "owner.json"
_NOTES = "notes"


class _Owner(msgspec.Struct, frozen=True):
    location: str


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
        self._found: dict[str, Note] = {}  # by its path; of drivers before

    def claim(self, location: str) -> None:
        """Own the name: the first one to write it does."""
        self._kept.create(_OWNER, msgspec.json.encode(_Owner(same_place(location))))

    def require_owner(
        self,
        location: str,
        *,
        newest_planned: int | None,
        decisions_of: Callable[[int], Sequence[Decision]],
    ) -> None:
        """See :meth:`Ownership.require`."""
        self._found = self._notes()
        owner = self._read(_OWNER, _Owner)
        Ownership(
            owner=owner.location if owner is not None else None,
            newest=max(self._found.values(), default=None),
        ).require(
            location,
            called=self._called,
            give_up=self._give_up,
            newest_planned=newest_planned,
            decisions_of=decisions_of,
        )

    def note(self, decision: Decision) -> None:
        """Replace this process's note; a reader takes the highest of all.

        Then those of drivers before that it exceeds say nothing any more, and are removed: else
        every start would read one more.
        """
        note = Note(decision.batch_id, decision.attempt, decision.nonce)
        ours = f"{_NOTES}/{self._nonce}.json"
        self._kept.put(ours, msgspec.json.encode(note))
        spent = [path for path, other in self._found.items() if other < note and path != ours]
        if spent:
            self._kept.delete(spent)
            self._found = {}

    def _notes(self) -> dict[str, Note]:
        """All that are there at one moment, by their paths.

        One that is gone when it is read was exceeded by one that may not have been listed.
        """
        while True:
            paths = [entry.path for entry in self._kept.list(_NOTES)]
            notes = {path: self._read(path, Note) for path in paths}
            found = {path: note for path, note in notes.items() if note is not None}
            if len(found) == len(paths):
                return found

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
