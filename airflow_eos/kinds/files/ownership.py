"""Base of both file participants: folder, owner name, ownership marker."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Self

from airflow_eos.checkpoint.name_owner import OwnershipFile
from airflow_eos.errors import ConfigurationError, StoreError
from airflow_eos.kinds.files.layout import files_of, prepared_at, visible_of, works_of
from airflow_eos.protocol.decision import OpenWork, require_own
from airflow_eos.protocol.participant import Member

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from airflow_eos.kinds.files.layout import WorkFile
    from airflow_eos.kinds.files.place import DataFolder
    from airflow_eos.protocol.decision import Decision, PreparedWork, WorkIdentity
    from airflow_eos.protocol.participant import Owner, Ownership
    from airflow_eos.protocol.promise import OperatorRuling, Promise

_MARK = "mark"


class Marked:
    """The mark of one name in one place.

    Args:
        place: where the data is.
        name: of the participant.
        mark: that is expected there.
    """

    def __init__(self, place: DataFolder, name: str, mark: str) -> None:
        self._place = place
        self._at = f"{name}/{_MARK}"
        self.mark = mark

    @classmethod
    def made(cls, place: DataFolder, name: str) -> Self:
        """The one that is there, else a new one.

        Raises:
            StoreError: the place refuses, or it was written and is gone.
        """
        path = f"{name}/{_MARK}"
        place.beside.create(path, uuid.uuid4().hex.encode())
        found = place.beside.get(path)
        if found is None:
            raise StoreError(
                f"{place.beside.location}/{path} was written and is gone: who deletes it?"
            )
        return cls(place, name, found.decode("ascii", errors="replace"))

    def require(self) -> None:
        """Files that are not there say nothing where the disk is not there, or is another one."""
        self._place.require()
        kept = self._place.beside.get(self._at)
        found = None if kept is None else kept.decode("ascii", errors="replace")
        if found != self.mark:
            raise StoreError(
                f"{self._place.address} is not the folder of this pipeline: its mark is "
                f"{found or 'missing'}, expected {self.mark}. Is the disk mounted here? Nothing "
                "was concluded from files that are not there."
            )


# --- owned ----------------------------------------------------------------------------------------


KIND = "files"


class OwnedFolder:
    """The half of a participant that both forms share.

    Args:
        place: where readers look.
        name: the participant's name in decisions.
        mark: the random id of the name in this folder, which another disk does not have.
        more: of the address, beside folder and mark.
    """

    def __init__(
        self, place: DataFolder, *, name: str, mark: str, more: Mapping[str, str] | None = None
    ) -> None:
        self._place = place
        self._name = name
        self._marked = Marked(place, name, mark)
        self._beside = OwnershipFile(place.kept(name), f"name {name!r} in {place.address}")
        self._address = {"folder": place.address, "mark": mark, **(more or {})}

    @property
    def members(self) -> tuple[Member, ...]:
        """At the folder, on this disk or in this bucket."""
        return (Member(self._name, KIND, self._address, f"files:{self._place.address}"),)

    def check(self, works: Sequence[PreparedWork]) -> None:
        """Each is of files of ours."""
        require_own(works, KIND, self._name)
        for work in works:
            files_of(work)

    def open(self, *, besides: Collection[WorkIdentity] = ()) -> tuple[OpenWork, ...]:
        """List what is prepared and not visible; never the folder that readers look at."""
        known = {work.key for work in besides}
        self._marked.require()
        found = []
        for key, entries in self._place.listed(works_of(self._name)).items():
            visible = [visible_of(entry.path, self._name, key) for entry in entries]
            if key in known or None not in self._place.sizes(visible):
                continue
            at_ms = min(entry.modified_at_ms for entry in entries)
            places = tuple(f"{self._place.address}/{path}" for path in visible)
            found.append(OpenWork(KIND, self._name, key, at_ms, None, places))
        return tuple(sorted(found, key=lambda each: each.key))

    def _altered(self, files: Sequence[WorkFile]) -> set[str]:
        """The prepared paths, of these that are there, at which another content is than promised.

        A copy, or somebody, has put another file of the same size there.
        """
        asked = [file for file in files if file.tail is not None]
        found = self._place.tails([(file.prepared, file.size) for file in asked])
        return {
            file.prepared
            for file, tail in zip(asked, found, strict=True)
            if tail not in (None, file.tail)
        }

    def _prepared(self, key: str) -> list[str]:
        return [entry.path for entry in self._place.below(prepared_at(self._name, key))]

    def claim(self, owner: Owner) -> None:
        """Own the name in this folder."""
        self._beside.claim(owner)

    def ownership(self, asking: Owner) -> tuple[Ownership, ...]:
        """Ask what is kept beside the work."""
        return self._beside.ownership(asking)

    def require_settled(self, promise: Promise, said: OperatorRuling) -> None:
        """Nothing is asked: whoever reads them may have moved old files away."""

    def note(self, decision: Decision, owner: Owner) -> None:
        """Remember it beside the work."""
        self._beside.note(decision, owner)

    def close(self) -> None:
        """Nothing is held."""


# --- form -----------------------------------------------------------------------------------------
# The folder's publish mode, recorded once so that all writers use the same.


_FORM = "form"  # no participant can be called so


def require_form(place: DataFolder, form: str) -> None:
    """Take ``form`` for the folder, unless it has one: two that start at once see no data yet.

    Raises:
        ConfigurationError: it has the other one.
        StoreError: the place refuses, or what was written is gone.
    """
    found = place.beside.get(_FORM)
    if found is None:
        place.beside.create(_FORM, form.encode())
        found = place.beside.get(_FORM)
    if found is None:
        raise StoreError(
            f"{place.beside.location}/{_FORM} was written and is gone: who deletes it?"
        )
    if found != form.encode():
        theirs = found.decode("ascii", errors="replace")
        raise ConfigurationError(
            f"{place.address} is written with publish={theirs!r}, and not {form!r}: readers see "
            "the files of one form alone. Give another folder, or the same form."
        )
