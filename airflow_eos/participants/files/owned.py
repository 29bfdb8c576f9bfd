"""What files as a participant are, however they become visible: a folder, a name and its mark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.checkpoint.name_owner import KeptBeside
from airflow_eos.participants.files.layout import (
    files_of,
    prepared_at,
    visible_of,
    works_of,
)
from airflow_eos.participants.files.marked import Marked
from airflow_eos.protocol.decision import OpenWork, require_own
from airflow_eos.protocol.participant import Member

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from airflow_eos.participants.files.place import Place
    from airflow_eos.protocol.decision import Decision, PreparedWork, WorkIdentity
    from airflow_eos.protocol.participant import Owner, Ownership
    from airflow_eos.protocol.promise import Promise, Said

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
        self, place: Place, *, name: str, mark: str, more: Mapping[str, str] | None = None
    ) -> None:
        self._place = place
        self._name = name
        self._marked = Marked(place, name, mark)
        self._beside = KeptBeside(place.kept(name), f"name {name!r} in {place.address}")
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

    def _prepared(self, key: str) -> list[str]:
        return [entry.path for entry in self._place.below(prepared_at(self._name, key))]

    def claim(self, owner: Owner) -> None:
        """Own the name in this folder."""
        self._beside.claim(owner)

    def ownership(self, asking: Owner) -> tuple[Ownership, ...]:
        """Ask what is kept beside the work."""
        return self._beside.ownership(asking)

    def require_settled(self, promise: Promise, said: Said) -> None:
        """Nothing is asked: whoever reads them may have moved old files away."""

    def note(self, decision: Decision, owner: Owner) -> None:
        """Remember it beside the work."""
        self._beside.note(decision, owner)

    def close(self) -> None:
        """Nothing is held."""
