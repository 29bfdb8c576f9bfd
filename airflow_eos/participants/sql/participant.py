"""A participant whose witness is a row, written in the transaction of the rows that it tells of.

What waits is asked for before the witness: the other way round a commit in between would look like
an abort. A witness that is not there means ABORTED only where it must be there, see the kinds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

from airflow_eos.closing import closed_on_error
from airflow_eos.errors import StoreError
from airflow_eos.failpoints import failpoint
from airflow_eos.participants.sql.ledger import Ledger
from airflow_eos.protocol.turns import in_turn
from airflow_eos.protocol.work import OpenWork, Outcome, PreparedWork, WorkIdentity, require_own

if TYPE_CHECKING:
    from airflow_eos.participants.sql.ledger import Book
    from airflow_eos.participants.sql.names import KeysOfName
    from airflow_eos.protocol.decision import Decision
    from airflow_eos.protocol.ownership import Owner, Ownership
    from airflow_eos.protocol.promise import Promise, Said

_COMMITS_AT_MOST = 5


class Session(Protocol):
    """A way to the database."""

    @property
    def place(self) -> str:
        """Where it is, for people."""
        ...

    def close(self) -> None:
        """Let go of it; what waits there stays."""


class SqlParticipant(ABC):
    """Most of a :class:`~airflow_eos.protocol.participant.Participant`.

    Args:
        session: to the database; closed with this.
        book: the rows of the name, of this database or refused where it is another one.
        keys: of the name under which all of it goes.
        name: the participant's name in decisions.
    """

    kind: ClassVar[str]
    where_it_waits: ClassVar[str]
    """For people: what to look at."""

    def __init__(self, session: Session, book: Book, *, keys: KeysOfName, name: str) -> None:
        self._session = session
        self._book = book
        self._ledger = Ledger(book, name)
        self._keys = keys
        self._name = name

    @abstractmethod
    def check_detail(self, work: PreparedWork) -> None:
        """Refuse what another release wrote (CheckpointFormatError)."""

    @abstractmethod
    def end(self, work: PreparedWork) -> None:
        """Make it visible with its witness, where it waits."""

    @abstractmethod
    def remove(self, key: str) -> bool:
        """Remove it by its key; False where it does not wait any more."""

    @abstractmethod
    def absent(self, work: PreparedWork, floor_ms: int) -> Outcome:
        """What it means that neither the work nor its witness is there."""

    def check(self, works: Sequence[PreparedWork]) -> None:
        """Each is a key of ours, in a form that this release knows."""
        require_own(works, self.kind, self._name)
        for work in works:
            self._keys.checked(work.key)
            self.check_detail(work)

    def commit(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """End each; what a lost reply leaves unsaid is asked of the witness."""
        self.check(works)
        floor_ms = self._book.ask([]).floor_ms
        owed = [work for work in works if work.opened_at_ms >= floor_ms]
        kept = {work.identity for work in owed}
        for _ in range(_COMMITS_AT_MOST):
            in_turn(partial(self._end, work) for work in owed)
            became = self.outcome(works)
            owed = [work for work in owed if became[work.identity] is Outcome.OPEN]
            if not owed:
                # Open below the floor: nobody can know any more whether it should be.
                return {
                    each: outcome
                    if each in kept or outcome is not Outcome.OPEN
                    else Outcome.UNKNOWN
                    for each, outcome in became.items()
                }
        raise StoreError(
            f"{owed[0].identity} still waits in {self._session.place} after {_COMMITS_AT_MOST} "
            f"commits. Nothing was guessed: look at {self.where_it_waits} there, then try again."
        )

    def _end(self, work: PreparedWork) -> None:
        self.end(work)
        failpoint("settled-some")

    def abort(self, works: Collection[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        """Roll each back by its key, which nobody else has ever used."""
        require_own(works, self.kind, self._name)
        return {work: self.remove(self._keys.checked(work.key)) for work in works}

    abandon = abort  # its rows and its witness are one transaction

    def outcome(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Ask what waits, then the witness; neither is ABORTED where both would be here.

        Raises:
            StoreError: the server does not answer, is another one, or was left behind.
        """
        self.check(works)
        if not works:
            return {}
        asked = self._book.ask([work.key for work in works])
        return {
            work.identity: Outcome.OPEN
            if work.key in asked.open
            else Outcome.COMMITTED
            if work.key in asked.there
            else self.absent(work, asked.floor_ms)
            for work in works
        }

    def open(self, *, besides: Collection[WorkIdentity] = ()) -> tuple[OpenWork, ...]:
        """List what waits under the name, in this database."""
        known = {work.key for work in besides}
        return tuple(
            OpenWork(self.kind, self._name, key, at_ms, None, (target,) if target else ())
            for key, at_ms, target in sorted(self._book.listed())
            if self._keys.is_own(key) and key not in known
        )

    def claim(self, owner: Owner) -> None:
        """Own the name in this database: the first one to write it does."""
        self._ledger.claim(owner)

    def ownership(self, asking: Owner) -> tuple[Ownership, ...]:
        """Ask the database."""
        return self._ledger.ownership(asking)

    def require_settled(self, promise: Promise, said: Said) -> None:
        """Ask the witnesses."""
        self._ledger.require_settled(promise, said)

    def note(self, decision: Decision, owner: Owner) -> None:
        """Written, and durable, when this returns."""
        self._ledger.note(decision, owner)

    def reached(self) -> Self:
        """This, once its database has answered and is the right one; closed where it is not."""
        with closed_on_error(self):
            self._book.ask([])
        return self

    def close(self) -> None:
        """Let go of the connection."""
        self._session.close()
