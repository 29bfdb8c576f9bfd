"""Claims and notes of one name, as a database keeps them beside the witnesses.

``names`` has one row a name: which database this is, whose the name is, how far it has delivered,
and the floor, below which witnesses may be gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from airflow_eos.errors import OwnershipError
from airflow_eos.protocol.ownership import Note, Ownership, same_place
from airflow_eos.protocol.promise import Promise

if TYPE_CHECKING:
    from airflow_eos.participants.sql.participant import Asked
    from airflow_eos.protocol.decision import Decision

KEPT_BATCHES = 1000
_EVERY = 100
_MARGIN_MS = 3_600_000  # a clock that is put back never makes settled work look younger than this


class Owning(Protocol):
    """The part of a participant that remembers an owner."""

    def claim(self, location: str) -> None:
        """See :meth:`~airflow_eos.protocol.participant.Participant.claim`."""

    def require_owner(
        self,
        location: str,
        *,
        newest_planned: int | None,
        decisions_of: Callable[[int], Sequence[Decision]],
    ) -> None:
        """See :meth:`~airflow_eos.protocol.participant.Participant.require_owner`."""

    def note(self, decision: Decision) -> None:
        """See :meth:`~airflow_eos.protocol.participant.Participant.note`."""


class Standing(NamedTuple):
    """A row of ``names``, but for its mark."""

    owner: str | None
    note: Note | None
    floor_ms: int


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
        """What waits and what is visible of these."""
        ...

    def claim(self, location: str) -> None:
        """Own the name if nobody does."""

    def note(self, note: Note) -> None:
        """Remember the highest note."""

    def move_floor(self, floor_ms: int) -> None:
        """Never lower it; then witnesses below may go."""


class Ledger:
    """See :class:`Owning`.

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
        """See :meth:`Ownership.require`; and refuse a database that forgot what it had.

        Raises:
            OwnershipError: with what was found and how to go on.
        """
        row = self._book.standing()
        Ownership(owner=row.owner, newest=row.note).require(
            location,
            called=self._book.called,
            give_up=f"set owner, batch, attempt and decision of {self._book.name!r} to NULL in the "
            f"table {self._book.tables[0]}",
            newest_planned=newest_planned,
            decisions_of=decisions_of,
        )
        if newest_planned:
            self._require_settled(decisions_of(newest_planned - 1), row.floor_ms)

    def note(self, decision: Decision) -> None:
        """Remember the newest decision of all; a sleeper's older one changes nothing."""
        self._book.note(Note(decision.batch_id, decision.attempt, decision.nonce))
        self._forget(decision)

    def _require_settled(self, decided: Sequence[Decision], floor_ms: int) -> None:
        """The batch before the newest one was settled before Spark planned another.

        A backup that was put back, or a replica that lagged when it took over, has lost its rows,
        and nobody would ever deliver them again.
        """
        whole = Promise.of(decided)
        promise = whole and whole.part(self._participant)
        if promise is None or any(work.opened_at_ms < floor_ms for work in promise.works):
            return
        asked = self._book.ask([work.key for work in promise.works])
        missing = promise.missing([w.identity for w in promise.works if w.key in asked.there])
        if missing:
            gone = ", ".join(sorted(w.key for w in promise.works if w.key not in asked.there))
            raise OwnershipError(
                f"Batch {promise.batch_id} was delivered under the {self._book.called}, which does "
                f"not show {missing.rows} of its rows any more: a backup was put back, or a "
                "replica took over that lagged. Earlier batches may be lost too, and nothing "
                "delivers them again. Compare the table with its source. To go on without these "
                f"rows: give each of these keys ({gone}) a row in the table "
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
