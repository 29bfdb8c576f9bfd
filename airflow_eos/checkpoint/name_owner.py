"""Who owns a name beside data, and how far it delivered: objects that never change.

==========================================================  =======================================
``<kept>/owner``                                            whose name it is: created if absent
``<kept>/notes/<batch>-<attempt>-<decision>-<pipeline>``    a decision that was relied on
==========================================================  =======================================

``<kept>`` is ``_eos/<application>`` in the folder of a table (Delta's VACUUM and Iceberg's
``remove_orphan_files`` pass over names that begin with ``_``), and beside a folder of files. No
name has an ending of data. A start reads all that is remembered by one listing, and a note goes
when a later one stands: see :func:`~airflow_eos.protocol.participant.superseded`.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_eos.errors import Remedy, StoreError
from airflow_eos.protocol.participant import Note, Owner, Ownership, superseded

if TYPE_CHECKING:
    from airflow_eos.checkpoint.store import CheckpointStore
    from airflow_eos.protocol.decision import Decision

_OWNER = "owner"
_NOTES = "notes"
_NAME = re.compile(r"(0|[1-9][0-9]*)-(0|[1-9][0-9]*)-([^-/]+)-([^/]+)", re.ASCII)


class OwnershipFile:
    """What is remembered of one name outside the checkpoint.

    Args:
        kept: the folder of the name; see the module.
        called: the name, for people.
    """

    def __init__(self, kept: CheckpointStore, called: str) -> None:
        self._kept = kept
        self._called = called
        self._known: set[Note] = set()

    def claim(self, owner: Owner) -> None:
        """Own the name: the first one to write it does."""
        self._kept.create(_OWNER, msgspec.json.encode(owner))

    def ownership(self, asking: Owner) -> tuple[Ownership, ...]:
        """See :class:`Ownership`."""
        del asking
        found = {entry.name: _named(entry.name) for entry in self._kept.list(_NOTES)}
        self._known = {note for note in found.values() if note is not None}
        return (
            Ownership(
                called=self._called,
                owner=self._read(_OWNER, Owner),
                notes=tuple(self._known),
                unreadable=tuple(f"{_NOTES}/{n}" for n, note in found.items() if note is None),
                give_up=Remedy(change=self._give_up, start=True),
                move=Remedy(
                    change=f"remove {self._kept.location}/{_OWNER}, and nothing else there",
                    start=True,
                ),
            ),
        )

    def note(self, decision: Decision, owner: Owner) -> None:
        """Note it, and remove what it supersedes of all that this process has seen."""
        note = Note.of(decision, owner)
        self._kept.create(_path(note), msgspec.json.encode(note))
        old = superseded(self._known, note)
        with contextlib.suppress(StoreError):  # who may not remove them leaves them to the next
            self._kept.delete(map(_path, old))
        self._known = {*self._known.difference(old), note}

    @property
    def _give_up(self) -> str:
        """Never the whole folder: what is prepared, and may be promised, can lie there too."""
        at = self._kept.location
        return f"remove {at}/{_OWNER} and the folder {at}/{_NOTES}, and nothing else there"

    def _read(self, path: str, kind: type[Any]) -> Any:
        data = self._kept.get(path)
        try:
            return None if data is None else msgspec.json.decode(data, type=kind)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise StoreError(
                f"{self._kept.location}/{path} cannot be read: {error}. It says who delivers as "
                f"{self._called}: restore it; or, if nobody does: {self._give_up}."
            ) from error


def _path(note: Note) -> str:
    return f"{_NOTES}/{note.batch}-{note.attempt}-{note.decision}-{note.pipeline}"


def _named(name: str) -> Note | None:
    found = _NAME.fullmatch(name)
    return None if found is None else Note(int(found[1]), int(found[2]), found[3], found[4])
