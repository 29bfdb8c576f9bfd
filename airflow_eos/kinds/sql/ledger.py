"""Claims and notes of one name, as a database keeps them beside the witnesses.

``names`` has one row a name: which database this is, whose the name is, how far it has delivered,
its generation, and the batch from which the next one is counted. A task reads the generation, and
its work and its witness carry it: witnesses below the one before the newest may be gone, and that
is the floor. No clock is asked: a server's may be put forth and back, and two servers have two.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from airflow_eos.errors import CheckpointFormatError, ConfigurationError, OwnershipError, Remedy
from airflow_eos.protocol.participant import Note, Owner, Ownership

if TYPE_CHECKING:
    from airflow_eos.protocol.decision import Decision, PreparedWork
    from airflow_eos.protocol.promise import OperatorRuling, Promise

KEPT_BATCHES = 1000
GENERATION = "generation"
"""In the detail of a work: that of its name when it was prepared."""


def generation_of(work: PreparedWork) -> int:
    """That of its name when ``work`` was prepared (CheckpointFormatError)."""
    generation = work.detail.get(GENERATION)
    if not isinstance(generation, int):
        raise CheckpointFormatError(
            f"Work {work.identity} has the detail {work.detail}: expected a generation. Was the "
            "checkpoint written by a newer release? Then use that one."
        )
    return generation


class NameRow(NamedTuple):
    """A row of ``names``, but for its mark."""

    owner: Owner | None
    note: Note | None
    generation: int
    counted: int | None

    @property
    def floor(self) -> int:
        """The generation below which witnesses may be gone."""
        return floor_of(self.generation)


def floor_of(generation: int) -> int:
    """The generation below which witnesses may be gone, once ``generation`` has begun."""
    return generation - 1


def standing_of(row: Sequence[Any]) -> NameRow:
    """A row of owner, batch, attempt, decision, generation and counted_batch."""
    text, batch, attempt, decision, generation, counted = row
    owner, pipeline = (None, "") if text is None else (Owner.of(text), Owner.of(text).pipeline)
    note = None if batch is None else Note(batch, attempt, decision, pipeline)
    return NameRow(owner, note, generation, counted)


class LedgerState(NamedTuple):
    """What a database says of some keys: below what it forgets, which wait, which are visible."""

    floor: int
    open: set[str]
    there: set[str]


class OwnershipTable(Protocol):
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

    def standing(self) -> NameRow:
        """The row of the name, refused where it is another database's (StoreError)."""
        ...

    def ask(self, keys: Sequence[str]) -> LedgerState:
        """What waits, asked first, and what is visible of these."""
        ...

    def listed(self) -> Collection[tuple[str, int, str]]:
        """All that waits under the name: key, since when (ms), and for which table."""
        ...

    def clock_ms(self) -> int:
        """What time it is there, ms since the epoch."""
        ...

    def claim(self, owner: str) -> None:
        """Own the name if nobody does."""

    def note(self, note: Note, owner: str) -> NameRow:
        """Remember the highest note, of the owner alone; what stood before it."""
        ...

    def begin_generation(self, generation: int, counted: int) -> None:
        """Never an older one; then witnesses below its floor may go. Count from ``counted``."""


class Ledger:
    """Whose a name is, and whether its database still has what it had.

    Args:
        book: the rows of the name.
        participant: its name in decisions.
    """

    def __init__(self, book: OwnershipTable, participant: str) -> None:
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

    def require_settled(self, promise: Promise, said: OperatorRuling) -> None:
        """Refuse a database that does not show what it had.

        Raises:
            OwnershipError: with what is gone, and how to go on without it.
        """
        promise = promise.part(self._participant)
        asked = self._book.ask([work.key for work in promise.works])
        if any(generation_of(work) < asked.floor for work in promise.works):
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

    def _forget(self, decision: Decision, before: NameRow) -> None:
        """Let go of witnesses that no decision in flight can name; the floor moves before they go.

        Where a batch waits for a month, no generation begins. One that is prepared while the next
        begins is above the floor still. The database keeps the batch that is counted from, since a
        run may end after each batch (``availableNow``).
        """
        batch = decision.batch_id
        since = before.counted if before.note is not None else None  # else of who had the name
        if since is None:
            self._book.begin_generation(before.generation, batch)
        elif batch - since >= KEPT_BATCHES:
            self._book.begin_generation(before.generation + 1, batch)


# --- names ----------------------------------------------------------------------------------------
# The names and keys under which the work of a participant goes; pure.
#
# A name is ``<prefix>.<participant>``, and a key of it is ``<name>-<task>-<attempt>-<32 hex>``:
# what
# is before the last three parts is the name, so none is ever taken for the beginning of another.


_PREFIX = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)
_OF_TASK = re.compile(r"(.+)-\d{1,10}-\d{1,10}-([0-9a-f]{32})", re.ASCII)


class KeysOfName:
    """The keys of one ``name``, which whoever has one is given with this."""

    name: str

    def new_key(self, task: int, attempt: int) -> str:
        """A key that is never used again in any database."""
        return f"{self.name}-{task}-{attempt}-{uuid.uuid4().hex}"

    def is_own(self, key: str) -> bool:
        """Whether it is a key of this name."""
        found = _OF_TASK.fullmatch(key)
        return found is not None and found[1] == self.name

    def checked(self, key: str) -> str:
        """Return ``key`` if it is of this name (CheckpointFormatError)."""
        if not self.is_own(key):
            raise CheckpointFormatError(
                f"{key!r} is no key of {self.name!r}: expected {self.name}-TASK-ATTEMPT-ID. "
                "Nothing was done with it."
            )
        return key

    def own_part(self, key: str) -> str:
        """The part of a key that no other one has: 32 hex digits (CheckpointFormatError)."""
        return self.checked(key)[-32:]


def name_of(prefix: str, participant: str, *, called: str = "gid_prefix") -> str:
    """The name under which all of it goes (ConfigurationError)."""
    if _PREFIX.fullmatch(prefix) is None:
        raise ConfigurationError(
            f"{called} {prefix!r}: expected 1 to 80 letters, digits, underscores or hyphens."
        )
    return f"{prefix}.{participant}"
