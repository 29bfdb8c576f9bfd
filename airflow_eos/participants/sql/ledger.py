"""Claims and notes of one name, as a database keeps them beside the witnesses.

``names`` has one row a name: which database this is, whose the name is, how far it has delivered,
the floor, below which witnesses may be gone, and the batch from which the next floor is counted.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from airflow_eos.errors import OwnershipError, Remedy
from airflow_eos.protocol.ownership import Note, Owner, Ownership

if TYPE_CHECKING:
    from airflow_eos.protocol.decision import Decision
    from airflow_eos.protocol.promise import Promise, Said

KEPT_BATCHES = 1000
_MARGIN_MS = 3_600_000  # a clock that is put back never makes settled work look younger than this


class Counted(NamedTuple):
    """A batch that was noted, and when the first of its work was opened."""

    batch: int
    opened_at_ms: int


class Standing(NamedTuple):
    """A row of ``names``, but for its mark."""

    owner: Owner | None
    note: Note | None
    floor_ms: int
    counted: Counted | None


def standing_of(row: Sequence[Any]) -> Standing:
    """A row of owner, batch, attempt, decision, floor_ms, counted_batch and counted_ms."""
    text, batch, attempt, decision, floor_ms, counted, counted_ms = row
    owner, pipeline = (None, "") if text is None else (Owner.of(text), Owner.of(text).pipeline)
    return Standing(
        owner,
        None if batch is None else Note(batch, attempt, decision, pipeline),
        floor_ms,
        None if counted is None else Counted(counted, counted_ms),
    )


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

    def claim(self, owner: str) -> None:
        """Own the name if nobody does."""

    def note(self, note: Note, owner: str) -> Standing:
        """Remember the highest note, of the owner alone; what stood before it."""
        ...

    def move_floor(self, floor_ms: int, counted: Counted) -> None:
        """Never lower it; then witnesses below may go. The next floor is that of ``counted``."""


class Ledger:
    """Whose a name is, and whether its database still has what it had.

    Args:
        book: the rows of the name.
        participant: its name in decisions.
    """

    def __init__(self, book: Book, participant: str) -> None:
        self._book = book
        self._participant = participant

    def claim(self, owner: Owner) -> None:
        """Own the name if nobody does."""
        self._book.claim(owner.text)

    def ownership(self, asking: Owner) -> tuple[Ownership, ...]:
        """See :class:`Ownership`."""
        del asking
        row = self._book.standing()
        forget = f"of {self._book.name!r} to NULL in the table {self._book.tables[0]}"
        noted = f"set owner, batch, attempt and decision {forget}"
        return (
            Ownership(
                called=self._book.called,
                owner=row.owner,
                notes=() if row.note is None else (row.note,),
                give_up=Remedy(change=noted, start=True),
                move=Remedy(change=f"set owner {forget}", start=True),
            ),
        )

    def note(self, decision: Decision, owner: Owner) -> None:
        """Remember the newest decision of all; a sleeper's older one changes nothing.

        Raises:
            OwnershipError: the name is another pipeline's by now, or nobody's.
        """
        before = self._book.note(Note.of(decision, owner), owner.text)
        if before.owner != owner:
            raise OwnershipError(
                f"The {self._book.called} belongs to {before.owner or 'nobody'} by now, and not to "
                f"{owner}. Nothing of batch {decision.batch_id} was made visible. Start the app "
                "again: it says who may go on."
            )
        self._forget(decision, before)

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
        missing = promise.lost_rows(there)
        if missing > said.missing_rows.get(self._participant, 0):
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

    def _forget(self, decision: Decision, before: Standing) -> None:
        """Let go of witnesses that no decision in flight can name; the floor moves before they go.

        It moves to a batch that was over long ago, never by age: where a batch waits for a month,
        the work of its first attempt must not look old to the second. The database keeps the
        batch that is counted from, since a run may end after each batch (``availableNow``).
        """
        opened = [w.opened_at_ms for w in decision.works if w.participant == self._participant]
        if not opened:
            return
        now = Counted(decision.batch_id, min(opened))
        since = before.counted if before.note is not None else None  # else of who had the name
        if since is None:
            self._book.move_floor(before.floor_ms, now)
        elif now.batch - since.batch >= KEPT_BATCHES:
            # Not above what is promised now, whatever a clock has done since then.
            floor_ms = min(since.opened_at_ms, now.opened_at_ms) - _MARGIN_MS
            self._book.move_floor(floor_ms, now)
