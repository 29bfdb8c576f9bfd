"""Which disk, or which bucket, this is: a random id beside the data, created if absent."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Self

from airflow_eos.errors import StoreError

if TYPE_CHECKING:
    from airflow_eos.participants.files.place import Place

_MARK = "mark"


class Marked:
    """The mark of one name in one place.

    Args:
        place: where the data is.
        name: of the participant.
        mark: that is expected there.
    """

    def __init__(self, place: Place, name: str, mark: str) -> None:
        self._place = place
        self._at = f"{name}/{_MARK}"
        self.mark = mark

    @classmethod
    def made(cls, place: Place, name: str) -> Self:
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
