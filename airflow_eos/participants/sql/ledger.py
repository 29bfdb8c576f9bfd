"""Claims and notes of one name, as a database keeps them beside the witnesses.

``names`` has one row a name: which database this is, whose the name is, how far it has delivered,
and the floor, below which witnesses may be gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from airflow_eos.errors import OwnershipError
from airflow_eos.protocol.ownership import Note, Ownership, same_place

if TYPE_CHECKING:
    from airflow_eos.protocol.decision import Decision
    from airflow_eos.protocol.promise import Promise, Said

KEPT_BATCHES = 1000
_EVERY = 100
_MARGIN_MS = 3_600_000  # a clock that is put back never makes settled work look younger than this


class Standing(NamedTuple):
    """A row of ``names``, but for its mark."""

    owner: str | None
    note: Note | None
    floor_ms: int


class Asked(NamedTuple):
    """What a database says of some keys: below what it forgets, which wait, which are visible."""

    floor_ms: int
    open: set[str]
    there: set[str]


class Book(Protocol):
    """The rows of one name; each call is durable when it returns, and may be repeated."""

    @property
    def called(self) -> str:
        """The name and its database, for people."""
        ...

    @property
    def tables(self) -> tuple[str, str]:
        """The tables of names and of witnesses, for people."""
        ...

    @property
    def name(self) -> str:
        """The name."""
        ...

    def standing(self) -> Standing:
        """The row of the name, refused where it is another database's (StoreError)."""
        ...

    def ask(self, keys: Sequence[str]) -> Asked:
        """What waits, asked first, and what is visible of these."""
        ...

    def listed(self) -> Collection[tuple[str, int, str]]:
        """All that waits under the name: key, since when (ms), and for which table."""
        ...

    def claim(self, location: str) -> None:
        """Own the name if nobody does."""

    def note(self, note: Note) -> None:
        """Remember the highest note."""

    def move_floor(self, floor_ms: int) -> None:
        """Never lower it; then witnesses below may go."""


class Ledger:
    """Whose a name is, and whether its database still has what it had.

    Args:
        book: the rows of the name.
        participant: its name in decisions.
    """

    def __init__(self, book: Book, participant: str) -> None:
        self._book = book
        self._participant = participant
        self._noted: deque[tuple[int, int]] = deque()

    def claim(self, location: str) -> None:
        """Own the name if nobody does."""
        self._book.claim(same_place(location))

    def require_owner(
        self,
        location: str,
        *,
        newest_planned: int | None,
        decisions_of: Callable[[int], Sequence[Decision]],
    ) -> None:
        """See :meth:`Ownership.require`."""
        row = self._book.standing()
        Ownership(owner=row.owner, newest=row.note).require(
            location,
            called=self._book.called,
            give_up=f"set owner, batch, attempt and decision of {self._book.name!r} to NULL in the "
            f"table {self._book.tables[0]}",
            newest_planned=newest_planned,
            decisions_of=decisions_of,
        )

    def note(self, decision: Decision) -> None:
        """Remember the newest decision of all; a sleeper's older one changes nothing."""
        self._book.note(Note(decision.batch_id, decision.attempt, decision.nonce))
        self._forget(decision)

    def require_settled(self, promise: Promise, said: Said) -> None:
        """Refuse a database that does not show what it had.

        Raises:
            OwnershipError: with what is gone, and how to go on without it.
        """
        promise = promise.part(self._participant)
        asked = self._book.ask([work.key for work in promise.works])
        if any(work.opened_at_ms < asked.floor_ms for work in promise.works):
            return
        there = {w.identity for w in promise.works if w.key in asked.there} | said.committed
        missing = promise.missing(there).rows
        if missing > said.missing_rows:
            waits = ", ".join(sorted(asked.open)) or "none of this one"
            gone = sorted({w.key for w in promise.works} - asked.there - asked.open)
            raise OwnershipError(
                f"Batch {promise.batch_id} was delivered under the {self._book.called}, which does "
                f"not show {missing} of its rows any more: a backup was put back, or a standby "
                "took over that lagged. Earlier batches may be lost too, and nothing delivers them "
                "again. Compare the table with its source, and commit (never roll back) what waits "
                f"there for a batch that is over: {waits}. To go on without the rest "
                f"({', '.join(gone) or 'none'}): give each of these keys a row in the table "
                f"{self._book.tables[1]}, with name {self._book.name!r} and 0 rows."
            )

    def _forget(self, decision: Decision) -> None:
        """Let go of witnesses that no decision in flight can name; the floor moves before they go.

        Only by what this process has seen settled itself: where a batch waits for a month, the work
        of its first attempt must not look old to the second.
        """
        opened = [w.opened_at_ms for w in decision.works if w.participant == self._participant]
        if not opened or decision.batch_id % _EVERY:
            return
        self._noted.append((decision.batch_id, min(opened)))
        floor_ms = None
        while self._noted and self._noted[0][0] <= decision.batch_id - KEPT_BATCHES:
            floor_ms = self._noted.popleft()[1] - _MARGIN_MS
        if floor_ms is not None:
            self._book.move_floor(floor_ms)
