"""The base of SQL participants: a commit writes a witness row in the transaction of its rows.

Waiting work is listed before witnesses are read: the other way round a commit in between would look
like an abort. A missing witness means ABORTED only where it must be there; see each kind.

Rows that wait in the checkpoint (:mod:`.kept`) can be read by several processes at once, and one of
them may sleep over an abort. So an abort writes a row in the witness's place, and the primary key
lets one of them win.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

from airflow_eos.core.closing import closed_on_error
from airflow_eos.core.failpoints import failpoint
from airflow_eos.core.log import Log
from airflow_eos.core.protocol.cut import stamp_of
from airflow_eos.core.protocol.decision import (
    OpenWork,
    Outcome,
    PreparedWork,
    WorkIdentity,
    require_own,
)
from airflow_eos.core.protocol.participant import Member, Note, Owner, Ownership
from airflow_eos.core.protocol.participant_group import in_turn
from airflow_eos.errors import (
    CheckpointFormatError,
    ConfigurationError,
    DecisionNeededError,
    DeliveryError,
    OwnershipError,
    Remedy,
    StoreError,
)
from airflow_eos.kinds.sql.kept import KEPT, require_form
from airflow_eos.kinds.sql.keys import KeysOfName

if TYPE_CHECKING:
    from airflow_eos.core.protocol.cut import BatchEnd
    from airflow_eos.core.protocol.decision import Decision
    from airflow_eos.core.protocol.promise import OperatorRuling, Promise
    from airflow_eos.kinds.sql.kept import KeptStatements

T = TypeVar("T")
log = Log(__name__)

KEPT_BATCHES = 1000
_SWEEP_EVERY = 16  # decisions that are noted between two looks for what a crash has left
GENERATION = "generation"
"""The key in a work's detail of the generation that its name had when it was prepared."""
WRITTEN_TABLE = "table"
"""The key in a work's detail of the table that its rows go to."""
BATCH_COLUMN = "batch_column"
"""The key in a work's detail of the column that has the stamp of its batch, if one has."""


def generation_of(work: PreparedWork) -> int:
    """Return the generation of the name when ``work`` was prepared (CheckpointFormatError)."""
    generation = work.detail.get(GENERATION)
    if not isinstance(generation, int):
        raise CheckpointFormatError(
            f"Work {work.identity} has the detail {work.detail}: expected a generation. Was the "
            "checkpoint written by a newer release? Then use that one."
        )
    return generation


class NameRow(NamedTuple):
    """A row of the table of names, without its mark."""

    owner: Owner | None
    note: Note | None
    generation: int
    counted: int | None

    @property
    def floor(self) -> int:
        """The generation below which witnesses may be gone."""
        return floor_of(self.generation)


def floor_of(generation: int) -> int:
    """Return the generation below which witnesses may be gone, once ``generation`` has begun."""
    return generation - 1


class LedgerState(NamedTuple):
    """A database's answer about keys: its floor, which wait, are visible, or were aborted.

    What waits in the checkpoint may have ended: its object is removed after that.
    """

    floor: int
    open: set[str]
    there: set[str]
    aborted: frozenset[str] = frozenset()


ABORTED_ROWS = -1
"""The number of rows in the witness's place where the work was aborted."""


_STANDING = """
SELECT mark, owner, batch, attempt, decision, generation, counted_batch
FROM {names} WHERE name = %s
"""
_CLAIM = "UPDATE {names} SET owner = %s WHERE name = %s AND owner IS NULL"
_NOTE = """
UPDATE {names} SET batch = %s, attempt = %s, decision = %s
WHERE name = %s AND owner = %s AND (batch IS NULL OR (batch, attempt) < (%s, %s))
"""
_BEGIN = """
UPDATE {names} SET generation = greatest(generation, %s), counted_batch = %s WHERE name = %s
"""
_FORGET = "DELETE FROM {works} WHERE name = %s AND generation < %s"


class OwnershipTable(ABC):
    """The rows of one name in a database; each call is durable when it returns, and repeatable.

    A kind supplies the tables, and how to run a statement on its own kind of connection.

    Args:
        session: the connection to the database.
        keys: the keys of the name.
        instance_id: the random id of the name in this database, which no other database has.
        kept: the rows that wait in the checkpoint; None where none ever did.
    """

    def __init__(
        self,
        session: DatabaseConnection,
        keys: KeysOfName,
        instance_id: str,
        kept: KeptStatements | None = None,
    ) -> None:
        self._session = session
        self._own = keys
        self.name = keys.name
        self.instance_id = instance_id
        self._kept = kept

    @property
    @abstractmethod
    def tables(self) -> tuple[str, str]:
        """The tables of names and of witnesses, as errors name them."""

    @abstractmethod
    def _read(self, connection: Any, statement: str, *given: Any) -> list[tuple[Any, ...]]:
        """Run a statement on {names} and {works}, and return the rows of its answer."""

    @abstractmethod
    def _write(self, connection: Any, *changes: tuple[str, Sequence[Any]]) -> None:
        """Run statements on {names} and {works}, with their arguments; durable on return."""

    @abstractmethod
    def _witnessed(self, connection: Any, keys: Sequence[str]) -> dict[str, int]:
        """Return those ``keys`` that have a row among the witnesses, with its number of rows."""

    @abstractmethod
    def witness(self, connection: Any, key: str, rows: int, generation: int) -> bool:
        """Write the witness of ``key`` if it has none; False where it has one by now.

        Who writes one at the same time is waited for.
        """

    def _waiting(self, connection: Any, keys: Sequence[str]) -> set[str]:
        """Return those ``keys`` whose work waits; asked before :meth:`_witnessed`."""
        del connection
        listed = self._kept.listed() if self._kept is not None else ()
        return {each.name for each in listed} & set(keys)

    def _listed(self, connection: Any) -> list[tuple[str, int, str]]:
        """List all work that waits under the name; see :meth:`listed`."""
        if self._kept is None:
            return []
        found = self._kept.listed()
        over = self._witnessed(connection, [each.name for each in found])
        return [
            (each.name, each.modified_at_ms, self._kept.location_of_rows(each.name))
            for each in found
            if each.name not in over
        ]

    @property
    def called(self) -> str:
        """The name and its database, as errors name them."""
        return f"name {self.name!r} in {self._session.address}"

    def row_of_name(self) -> NameRow:
        """Return the row of the name; refuse another database (StoreError)."""
        return self._session.run("asking who owns the name", self.row)

    def ask(self, keys: Sequence[str]) -> LedgerState:
        """Return which of ``keys`` wait (asked first), and which are visible."""

        def ask(connection: Any) -> LedgerState:
            self.row(connection)
            open_ = self._waiting(connection, keys)
            there = self._witnessed(connection, [*keys, self.instance_id])
            if self.instance_id not in there:
                raise self._witnesses_are_gone()
            # The floor is read last: a witness removed meanwhile was below it by then.
            floor = self.row(connection).floor
            aborted = frozenset(key for key, rows in there.items() if rows == ABORTED_ROWS)
            return LedgerState(floor, open_, there.keys() - aborted, aborted)

        return self._session.run("asking for outcomes", ask)

    def listed(self) -> list[tuple[str, int, str]]:
        """List all work that waits under the name: key, since when (ms), and where."""

        def ask(connection: Any) -> list[tuple[str, int, str]]:
            self.row(connection)
            return self._listed(connection)

        return self._session.run("listing what waits", ask)

    def give_up(self, key: str) -> bool:
        """Write in the place of the witness that ``key`` was aborted; False where it had ended.

        The row is of the newest generation, so that it stays as long as the work may be committed.
        """

        def act(connection: Any) -> bool:
            generation = self.row(connection).generation
            return self.witness(connection, key, ABORTED_ROWS, generation)

        return self._session.run("aborting", act)

    def sweep(self) -> None:
        """Remove the objects of ended work, which a crash has left."""

        def ask(connection: Any) -> list[str]:
            self.row(connection)
            found = self._kept.listed() if self._kept is not None else ()
            return [*self._witnessed(connection, [each.name for each in found])]

        if self._kept is not None:
            self._kept.forget(self._session.run("listing what has ended", ask))

    def claim(self, owner: str) -> None:
        """Write ``owner`` as the owner of the name if it has none."""

        def act(connection: Any) -> None:
            self.row(connection)
            self._write(connection, (_CLAIM, (owner, self.name)))

        self._session.run("claiming the name", act)

    def note(self, note: Note, owner: str) -> NameRow:
        """Write the note if it is the owner's and the highest; return the row as it was before."""

        def act(connection: Any) -> NameRow:
            before = self.row(connection)
            batch_attempt = (note.batch, note.attempt)
            self._write(
                connection,
                (_NOTE, (*batch_attempt, note.decision, self.name, owner, *batch_attempt)),
            )
            return before

        return self._session.run("noting a decision", act)

    def begin_generation(self, generation: int, counted: int) -> None:
        """Begin a generation, unless a later one has begun; delete witnesses below its floor.

        Batches are counted from ``counted`` on.
        """
        changes = (
            (_BEGIN, (generation, counted, self.name)),
            (_FORGET, (self.name, floor_of(generation))),
        )
        self._session.run("forgetting old witnesses", lambda c: self._write(c, *changes))

    def row(self, connection: Any) -> NameRow:
        """Return the row of the name; refuse another database, whose missing rows say nothing.

        Raises:
            StoreError: the name has another mark there, or none.
        """
        found = next(iter(self._read(connection, _STANDING, self.name)), None)
        if found is None or found[0] != self.instance_id:
            raise StoreError(
                f"This is not the database of {self.name!r}: its mark in {self.tables[0]} is "
                f"{found[0] if found else 'missing'}, expected {self.instance_id}. Nothing was "
                "concluded from rows that are not there. Is the connection right?"
            )
        _, text, batch, attempt, decision, generation, counted = found
        owner = None if text is None else Owner.of(text)
        pipeline = "" if owner is None else owner.pipeline
        note = None if batch is None else Note(batch, attempt, decision, pipeline)
        return NameRow(owner, note, generation, counted)

    def _witnesses_are_gone(self) -> StoreError:
        """Return the error for a table of witnesses that was emptied or made anew.

        The name's own mark is among the witnesses from the start, and this package never removes
        it: where it is missing, a missing witness says nothing.
        """
        _, works = self.tables
        return StoreError(
            f"The witnesses of the {self.called} are gone: the table {works} was emptied, or "
            "dropped and made anew. Which of the promised rows are visible is not known any more, "
            "and nothing was concluded.",
            Remedy(change=f"restore the table {works}", start=True),
            Remedy(
                change="give each key of the batch in flight whose rows are in their table a row "
                f"in {works}, with name {self.name!r} and 0 rows, and last one with the key "
                f"{self.instance_id}",
                start=True,
                costs="rows whose key is left out, though they are visible, come twice",
            ),
        )


# --- participant ----------------------------------------------------------------------------------


_LOOKS_AT_MOST = 6


class SqlParticipant(ABC):
    """The base of SQL participants; see ``core.protocol.participant``.

    Args:
        session: the connection to the database; closed with this participant.
        tables: the keys of the participant's name, and the tables where a kind keeps its rows.
        name: the participant's name in decisions.
        instance_id: the random id of the name in this database, which no other database has.
        target: the table, as people read it.
        kept: the rows that wait in the checkpoint; None where none ever did.
    """

    kind: ClassVar[str]
    book: ClassVar[type[OwnershipTable]]
    """The class for the rows of the name; it refuses another database."""
    client_error: ClassVar[type[Exception]]
    """The base of the errors of the database's client."""

    def __init__(
        self,
        session: Any,
        tables: Any,
        *,
        name: str,
        instance_id: str,
        target: str = "",
        kept: KeptStatements | None = None,
    ) -> None:
        self._session = session
        self._book = self.book(session, tables, instance_id, kept)
        self._tables = tables
        self._name = name
        self._target = target
        self._kept = kept
        self._kept_instance_id = None if kept is None else kept.instance_id()
        self._noted = 0

    @property
    def members(self) -> tuple[Member, ...]:
        """The participant, by its mark in the database, which hosts and upgrades do not change."""
        address = {**vars(self._tables), "mark": self._book.instance_id}
        target = f"{self.kind}:{self._session.address} {self._target}".strip()
        return (Member(self._name, self.kind, address, target),)

    @abstractmethod
    def check_detail(self, work: PreparedWork) -> None:
        """Refuse work whose detail another release wrote (CheckpointFormatError)."""

    @abstractmethod
    def require_kept(self, table: str) -> None:
        """Refuse a table that may lose rows that it has taken (ConfigurationError)."""

    @abstractmethod
    def transaction(self, connection: Any) -> AbstractContextManager[None]:
        """Run a transaction of the connection, which is durable at its end."""

    @abstractmethod
    def insert(self, connection: Any, stream: bytes, where: str) -> int:
        """Send the pieces of kept rows to their table; return how many rows it has taken."""

    @abstractmethod
    def refusal(self, error: Any) -> str | None:
        """Return why the table refuses rows; None where the error does not come from them."""

    def end(self, work: PreparedWork) -> None:
        """Commit waiting work: make its rows visible together with its witness."""
        kept = self._kept_there()
        stream = kept.read_intact(work)
        if stream is None:  # another process has ended it: who asked asks again
            return
        where = kept.location_of_rows(work.key)
        self._session.run("committing", lambda c: self._commit(c, work, stream, where))
        failpoint("moved")

    def remove(self, key: str) -> bool:
        """Remove waiting work by its key; False where it does not wait any more.

        Without its object nobody begins to commit it.
        """
        if self._kept is None or not self._kept.has(key):
            return False
        by_us = self._book.give_up(key)
        self._kept.forget([key])
        return by_us

    def absent(self, work: PreparedWork) -> Outcome:
        """Return the outcome of work above the floor that neither waits nor has a witness."""
        if work.detail.get("form") == KEPT:
            self._kept_there().require_there(self._kept_instance_id)
        return Outcome.ABORTED

    def check(self, works: Sequence[PreparedWork]) -> None:
        """Refuse work whose key is not of this name, or whose form this release does not know."""
        require_own(works, self.kind, self._name)
        for work in works:
            self._tables.checked(work.key)
            generation_of(work)
            self.check_detail(work)
            if work.detail.get("form") == KEPT:
                require_form(work)

    def require_decidable(self, works: Sequence[PreparedWork]) -> None:
        """Refuse, before it is decided, work whose witness or rows the database would not keep.

        Raises:
            DeliveryError: too much was delivered under the name since the work was prepared.
            ConfigurationError: the table may lose rows, unlike at the start of the query.
        """
        self.check(works)
        for table in sorted({str(t) for w in works if (t := w.detail.get(WRITTEN_TABLE))}):
            self.require_kept(table)
        floor = self._book.row_of_name().floor
        if below := [work.identity for work in works if generation_of(work) < floor]:
            raise DeliveryError(
                f"{below[0]} was prepared long before what is delivered under the "
                f"{self._book.called} now, which keeps no witness so old: another driver goes on "
                "under this name. Nothing was decided, and nothing of it is visible."
            )

    def commit(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Commit each work; where a reply is lost, ask the witness for the outcome."""
        for _ in range(_LOOKS_AT_MOST):
            became, over, lost = self._asked(works)
            owed = [work for work in works if became[work.identity] is Outcome.OPEN]
            for key in lost:  # who has read the object before it went may still be about to commit
                self._book.give_up(key)
            if not owed and not lost:
                if self._kept is not None:
                    self._kept.forget(over)
                return became
            in_turn(partial(self._end, work) for work in owed)
        raise StoreError(
            f"{(owed or works)[0].identity} still waits for {self._session.address} after "
            f"{_LOOKS_AT_MOST} commits. Nothing was guessed: look at the server's log, then try "
            "again."
        )

    def _end(self, work: PreparedWork) -> None:
        self.end(work)
        failpoint("settled-some")

    def _commit(self, connection: Any, work: PreparedWork, stream: bytes, where: str) -> None:
        """Write witness and rows in one transaction, unless the work has ended meanwhile.

        Raises:
            DecisionNeededError: the table does not take the rows any more.
            StoreError: who sleeps for 1,000 batches finds that no row says any more how it ended.
        """
        try:
            with self.transaction(connection):
                # It comes first: who commits or aborts the same work waits here, and finds it.
                if not self._book.witness(connection, work.key, work.rows, generation_of(work)):
                    return
                if generation_of(work) < self._book.row(connection).floor:
                    raise StoreError(
                        f"{work.identity} is of a batch that was over long ago, so what became of "
                        "it is not known. Nothing of it was made visible."
                    )
                taken = self.insert(connection, stream, where)
                if taken != work.rows:
                    raise would_not_all_arrive(work, taken, where)
        except self.client_error as error:
            why = self.refusal(error)
            if why is None:
                raise
            raise cannot_be_written(work.identity, why, where) from error

    def _kept_there(self) -> KeptStatements:
        if self._kept is None:
            raise StoreError(
                f"The rows of {self._name!r} wait in the checkpoint, under eos/kept/{self._name}, "
                "which is not there. Is this a part of a copy? Nothing was concluded.",
                Remedy(change="put that folder back", start=True),
            )
        return self._kept

    def abort(self, works: Collection[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        """Roll each work back by its key, which nobody else has ever used."""
        require_own(works, self.kind, self._name)
        return {work: self.remove(self._tables.checked(work.key)) for work in works}

    abandon = abort  # its rows and its witness are one transaction

    def outcome(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Return each work's outcome: ask what waits, then the witnesses; see :meth:`absent`.

        Raises:
            StoreError: the server does not answer, is another one, or was left behind.
        """
        return self._asked(works)[0]

    def _asked(
        self, works: Sequence[PreparedWork]
    ) -> tuple[dict[WorkIdentity, Outcome], list[str], list[str]]:
        """Return each work's outcome, and two lists of keys.

        The first is of what has ended and is still kept; the second of what was kept and is gone,
        without a row that says how it ended.
        """
        self.check(works)
        if not works:
            return {}, [], []
        asked = self._book.ask([work.key for work in works])

        def became(work: PreparedWork) -> Outcome:
            if work.key in asked.there:
                return Outcome.COMMITTED
            if generation_of(work) < asked.floor:
                # Also where the work waits: no decision that may still be relied on names it.
                return Outcome.UNKNOWN
            if work.key in asked.aborted:
                return Outcome.ABORTED
            return Outcome.OPEN if work.key in asked.open else self.absent(work)

        over = asked.open & (asked.there | asked.aborted)
        found = {work.identity: became(work) for work in works}
        lost = [
            work.key
            for work in works
            if found[work.identity] is Outcome.ABORTED
            and work.detail.get("form") == KEPT
            and work.key not in asked.aborted
        ]
        return found, sorted(over), lost

    def position(self, end: BatchEnd) -> dict[str, Any] | None:
        """See :class:`Seekable`: the table, its column of stamps, and the stamp of the batch."""
        if not end.works:
            return dict(end.former or {})
        detail = end.works[-1].detail
        if detail.get(BATCH_COLUMN) is None:
            return None
        stamp = stamp_of(end.pipeline, end.batch_id)
        return {"table": detail[WRITTEN_TABLE], "column": detail[BATCH_COLUMN], "stamp": stamp}

    def open(self, *, except_known: Collection[WorkIdentity] = ()) -> tuple[OpenWork, ...]:
        """List the work that waits under the name, in this database."""
        known = {work.key for work in except_known}
        return tuple(
            OpenWork(self.kind, self._name, key, at_ms, None, (target,) if target else ())
            for key, at_ms, target in sorted(self._book.listed())
            if self._tables.is_own(key) and key not in known
        )

    def claim(self, owner: Owner) -> None:
        """Claim the name in this database: the first pipeline that writes itself there owns it."""
        self._book.claim(owner.text)

    def ownership(self, asking: Owner) -> tuple[Ownership, ...]:
        """Return what the database remembers of the name: its owner and its newest note."""
        del asking
        row = self._book.row_of_name()
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
        """Note the decision in the database; an older decision of a sleeper changes nothing.

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
        if self._kept is not None and self._noted % _SWEEP_EVERY == 0:
            self._book.sweep()
        self._noted += 1

    def require_settled(self, promise: Promise, said: OperatorRuling) -> None:
        """Refuse a database that has lost rows of the promise: a backup, or a standby that lagged.

        Raises:
            OwnershipError: with what is gone, and how to go on without it.
        """
        promise = promise.part(self._name)
        asked = self._book.ask([work.key for work in promise.works])
        if any(generation_of(work) < asked.floor for work in promise.works):
            return
        there = {w.identity for w in promise.works if w.key in asked.there} | said.committed
        missing = promise.lost_rows(there)
        if missing > said.missing_rows.get(self._name, 0):
            waits = ", ".join(sorted(asked.open - asked.there)) or "none of this one"
            gone = sorted({w.key for w in promise.works} - asked.there - asked.open)
            works, name = self._book.tables[1], self._book.name
            raise OwnershipError(
                f"Batch {promise.batch_id} was delivered under the {self._book.called}, which does "
                f"not show {missing} of its rows any more: a backup was put back, or a standby "
                "took over that lagged. Earlier batches may be lost too, and nothing delivers them "
                "again: compare the table with its source.",
                Remedy(
                    change="commit (never roll back) what waits there for a batch that is over: "
                    f"{waits}; give each of the rest ({', '.join(gone) or 'none'}) a row in the "
                    f"table {works}, with name {name!r} and 0 rows; and each key of the batch in "
                    "flight, too, whose rows are in their table and which has no row there",
                    start=True,
                    costs=f"what the table lacks of the {missing} rows; and rows of the batch in "
                    "flight whose key is left out, though they are visible, come twice",
                ),
            )

    def _forget(self, decision: Decision, before: NameRow) -> None:
        """Delete witnesses that no decision in flight can name; the floor moves before they go.

        Where a batch waits for a month, no generation begins. Work that is prepared while the next
        generation begins is above the floor still. The batch that is counted from is kept in the
        database, since a run may end after each batch (``availableNow``).
        """
        batch = decision.batch_id
        since = before.counted if before.note is not None else None  # else a former owner's count
        if since is None:
            self._book.begin_generation(before.generation, batch)
        elif batch - since >= KEPT_BATCHES:
            self._book.begin_generation(before.generation + 1, batch)

    def reached(self) -> Self:
        """Check that the database answers and is the right one; close the connection otherwise."""
        with closed_on_error(self):
            self._book.ask([])
        return self

    def close(self) -> None:
        """Close the connection to the database."""
        self._session.close()


# --- lost connections -----------------------------------------------------------------------------
# A lost connection says nothing about what the server did, so the statement is run again.


_PAUSES_S = (0.0, 0.1, 0.5, 1.0, 2.0)


class LostError(StoreError):
    """The connection was lost, and with it the server's reply."""


def answered(act: Callable[[], T], *, again: Callable[[], None], timeout_s: float) -> T:
    """Call ``act``, and repeat it whenever the connection is lost.

    Args:
        act: may end at any point and be repeated, changing nothing twice.
        again: closes the lost connection.
        timeout_s: seconds from the first loss within which the server must answer again.

    Raises:
        StoreError: no answer within the time; what the server did is not known.
    """
    deadline = None
    tries = 0
    while True:
        try:
            return act()
        except LostError as lost:
            again()
            now = time.monotonic()
            deadline = now + timeout_s if deadline is None else deadline
            if now > deadline:
                raise StoreError(
                    f"{lost} Asked again for {timeout_s:.0f} s, without a reply. Nothing was "
                    "guessed; restore it and run the same step again, which finds out."
                ) from lost.__cause__
        time.sleep(_PAUSES_S[min(tries, len(_PAUSES_S) - 1)])
        tries += 1


class DatabaseConnection(ABC):
    """A connection to a database, which is made again when it is lost.

    Args:
        reach: the URL or DSN that the user gives.
        timeout_s: seconds in which the server must answer again.
        lock_timeout_s: seconds that a statement waits for a lock of another transaction.
    """

    def __init__(self, reach: str, *, timeout_s: float, lock_timeout_s: float = 30.0) -> None:
        self._reach = reach
        self._timeout_s = timeout_s
        self._lock_timeout_s = lock_timeout_s
        self._connection: Any = None

    @property
    @abstractmethod
    def address(self) -> str:
        """The address of the database, without secrets."""

    @abstractmethod
    def _open(self) -> Any:
        """Return the connection; make one where there is none."""

    @abstractmethod
    def _meaning(self, doing: str) -> AbstractContextManager[None]:
        """Translate server errors into this package's; LostError where the connection is lost."""

    def run(self, doing: str, act: Callable[[Any], T]) -> T:
        """Call ``act`` with the connection, and repeat it on a new one whenever one is lost.

        Args:
            doing: what ``act`` does, for errors.
            act: may end at any point and be repeated, changing nothing twice.

        Raises:
            StoreError: no answer within the time; what the server did is not known.
            ConfigurationError: a right, a table or a setting is missing.
        """
        once = partial(self.once, doing, act)
        return answered(once, again=self.close, timeout_s=self._timeout_s)

    def once(self, doing: str, act: Callable[[Any], T]) -> T:
        """Call ``act`` as :meth:`run` does, and repeat nothing.

        Raises:
            StoreError: as above; :class:`LostError` where the connection is lost.
            ConfigurationError: as above.
        """
        with self._meaning(doing):
            return act(self._open())

    def close(self) -> None:
        """Close the connection; work that waits in the database stays."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._close(connection)

    @abstractmethod
    def _close(self, connection: Any) -> None:
        """Close ``connection``, whatever the server answers."""


# --- rows that a table refuses --------------------------------------------------------------------
# Errors and warnings about kept rows that a table does not take, before and after the decision.


_HINT = (
    "Two tasks of a batch that have one key are found only after the decision, and ask a person: "
    "repartition the rows by the key."
)


def warn_of_refusals(table: str, by: Sequence[str]) -> None:
    """Warn of the keys, constraints and triggers by which the table may refuse decided rows."""
    log.warning("decided_rows_may_be_refused", table=table, by="; ".join(by), hint=_HINT)


def key_is_there(table: str, key: str) -> DeliveryError:
    """Return a task's error for a row whose unique key the table has already."""
    return DeliveryError(
        f"Table {table} has a row with the unique key ({key}) of a row that was to be delivered, "
        "or the task has two, and the sink only inserts: the unique constraint would refuse it, so "
        "nothing was made visible.",
        Remedy(change="leave such rows out in the query", start=True),
        Remedy(change="remove the row from the table", start=True, costs="that row"),
        Remedy(change="use UpsertSink, which replaces it", start=True),
    )


def took_other(rows: int, taken: int, table: str) -> DeliveryError:
    """Return a task's error for a table that took fewer rows than it was given, or more."""
    return DeliveryError(
        f"{rows} rows were sent to table {table}, which took {taken}. Nothing was made visible.",
        Remedy(
            change="drop the trigger that drops or redirects rows, or deliver to a table without "
            "one",
            start=True,
        ),
    )


def cannot_be_written(work: WorkIdentity, why: str, where: str) -> DecisionNeededError:
    """Return the error for decided rows that their table refuses."""
    return DecisionNeededError(
        f"The promised rows of {work} cannot be written to their table: {why}. They wait in "
        f"{where}, and nothing of this work is visible. Was the table changed, or does another "
        "row hold a unique key? Make room for them in the table, then start again (or run "
        "airflow-eos recover). How they are read, and given up: docs/recovery.md, 'Rows that a "
        "table refuses'."
    )


def would_not_all_arrive(work: PreparedWork, taken: int, where: str) -> DecisionNeededError:
    """Return the error for a commit that would deliver fewer or more rows than were promised."""
    return DecisionNeededError(
        f"{work.identity}: {work.rows} rows were promised, and {taken} would arrive in "
        f"{work.detail.get(WRITTEN_TABLE)}. Nothing of it was made visible; they wait in {where}. "
        "Does a trigger drop rows since? Take it out of the table, then start again."
    )


def ddl_refused(what: str, statements: str) -> ConfigurationError:
    """Return the error for a server or role that lets nobody make our tables at a start."""
    return ConfigurationError(
        f"{what} The pipelines of a database share tables, which a first start makes by DDL; "
        f"no later step makes or drops any. Let somebody who may run this once:\n{statements}"
    )


def ddl_published(names: str, statements: str) -> ConfigurationError:
    """Return the error for publications that would take our new tables to who lacks them."""
    return ddl_refused(
        f"The publication {names!r} would have ours, too, as it has every new table there, and a "
        "subscriber that lacks them stands still: make them at each subscriber first, then here.",
        statements,
    )
