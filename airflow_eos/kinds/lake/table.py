"""What a kind of table gives: one look at its log, and one exclusive step from it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar


class LostRaceError(Exception):
    """The log went on since it was looked at, or refused, or did not answer: look again."""


@dataclass(frozen=True)
class DataFile:
    """A whole Parquet file in the folder of the table: bytes, rows, ms since the epoch."""

    path: Path
    size: int
    rows: int
    modified_at_ms: int


class TableSnapshot(Protocol):
    """The table as it was at one look; it never moves on by itself."""

    def witness(self, slot: str) -> int | None:
        """The number that was written last under this name, in the same step as its rows."""
        ...

    def names(self, files: Collection[Path]) -> frozenset[Path]:
        """The given files that this version of the table names."""
        ...

    def still_names(self, files: Collection[Path]) -> frozenset[Path]:
        """The given files that this or any former, still readable version of the table names."""
        ...

    def check(self, files: Sequence[DataFile]) -> None:
        """Refuse files that are not of the table's columns.

        Raises:
            ConfigurationError: the table was changed since they were promised; nothing is dropped.
            LostRaceError: one of them is gone.
        """
        ...

    def append(self, files: Sequence[DataFile], slot: str, number: int) -> None:
        """Add the files (none is right too) and the witness, in one step, on this very look.

        Raises:
            LostRaceError: it is not known whether it was done.
        """
        ...

    def make_durable(self) -> None:
        """What this look has seen survives a power cut."""
        ...


class LakeTable(Protocol):
    """One table that a pipeline delivers into."""

    @property
    def address(self) -> dict[str, str]:
        """What must never change: where it is, and an id that no other table has."""
        ...

    @property
    def folder(self) -> Path:
        """Where ours is kept beside the data, under a name that the table's own cleaners spare."""
        ...

    @property
    def data(self) -> Path:
        """The folder of the data files."""
        ...

    def look(self) -> TableSnapshot:
        """The table as it is now.

        Raises:
            StoreError: it is not there, is another one, or cannot be read.
            ConfigurationError: it has what we cannot write, or what forgets witnesses.
        """
        ...


# --- nullability ----------------------------------------------------------------------------------
# Whether rows may hold a null where a table holds none, within columns whose types are alike.


T = TypeVar("T")
Within = Callable[[T], Sequence[tuple[bool, T]]]
"""(whether it may be null, its type) of each part of a type."""


def is_looser(ours: T, theirs: T, within: Within[T]) -> bool:
    """Whether a part of ``ours``, at any depth, may be null, and not in ``theirs``."""
    return any(
        (mine and not other) or is_looser(my_type, other_type, within)
        for (mine, my_type), (other, other_type) in zip(within(ours), within(theirs), strict=True)
    )
