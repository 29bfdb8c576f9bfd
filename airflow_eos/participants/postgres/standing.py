"""What the database remembers of a name: whose it is, how far it is, and below what it forgets."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from airflow_eos.errors import OwnershipError, StoreError
from airflow_eos.participants.postgres.session import Connection, Session
from airflow_eos.participants.postgres.tables import Tables
from airflow_eos.participants.postgres.works import waiting, witnessed
from airflow_eos.protocol.decision import Decision
from airflow_eos.protocol.ownership import Note, Ownership, same_place
from airflow_eos.protocol.promise import Promise

KEPT_BATCHES = 1000
_EVERY = 100
_MARGIN_MS = 3_600_000  # a clock that is put back never makes settled work look younger than this


class Standing(NamedTuple):
    """A row of ``names``, but for its mark."""

    owner: str | None
    note: Note | None
    floor_ms: int


def standing(connection: Connection, tables: Tables, mark: str) -> Standing:
    """The row of the name, refused where it is another database's.

    Rows that are not there say nothing where this is not the database that the work was given to.

    Raises:
        StoreError: it has another mark, or none.
    """
    found = connection.execute(
        tables.statement(
            "SELECT mark, owner, batch, attempt, decision, floor_ms FROM {names} WHERE name = %s"
        ),
        [tables.name],
    ).fetchone()
    if found is None or found[0] != mark:
        raise StoreError(
            f"This is not the database of {tables.name!r}: its mark in {tables.schema}.names is "
            f"{found[0] if found else 'missing'}, expected {mark}. Nothing was concluded from rows "
            "that are not there. Is the connection right?"
        )
    _, owner, batch, attempt, decision, floor_ms = found
    return Standing(owner, None if batch is None else Note(batch, attempt, decision), floor_ms)


class Ledger:
    """Claims and notes of one name, as one process writes them."""

    def __init__(self, session: Session, tables: Tables, mark: str, participant: str) -> None:
        self._session = session
        self._tables = tables
        self._mark = mark
        self._participant = participant
        self._noted: deque[tuple[int, int]] = deque()

    def claim(self, location: str) -> None:
        """Own the name if nobody does."""

        def act(connection: Connection) -> None:
            standing(connection, self._tables, self._mark)
            connection.execute(
                self._tables.statement(
                    "UPDATE {names} SET owner = %s WHERE name = %s AND owner IS NULL"
                ),
                [same_place(location), self._tables.name],
            )

        self._session.run("claiming the name", act)

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
        names = f"{self._tables.schema}.names"
        row = self._session.run(
            "asking who owns the name", lambda c: standing(c, self._tables, self._mark)
        )
        Ownership(owner=row.owner, newest=row.note).require(
            location,
            called=f"name {self._tables.name!r} in {self._session.place}",
            give_up=f"set owner, batch, attempt and decision of {self._tables.name!r} to NULL in "
            f"the table {names}",
            newest_planned=newest_planned,
            decisions_of=decisions_of,
        )
        if newest_planned:
            self._require_settled(decisions_of(newest_planned - 1), row.floor_ms)

    def note(self, decision: Decision) -> None:
        """Remember the newest decision of all; a sleeper's older one changes nothing."""

        def act(connection: Connection) -> None:
            standing(connection, self._tables, self._mark)
            connection.execute(
                self._tables.statement(
                    "UPDATE {names} SET batch = %(batch)s, attempt = %(attempt)s, "
                    "decision = %(decision)s WHERE name = %(name)s "
                    "AND (batch IS NULL OR (batch, attempt) < (%(batch)s, %(attempt)s))"
                ),
                {
                    "batch": decision.batch_id,
                    "attempt": decision.attempt,
                    "decision": decision.nonce,
                    "name": self._tables.name,
                },
            )

        self._session.run("noting a decision", act)
        self._forget(decision)

    def _require_settled(self, decided: Sequence[Decision], floor_ms: int) -> None:
        """The batch before the newest one was settled before Spark planned another.

        A backup that was put back, or a standby that lagged when it took over, has lost its rows,
        and nobody would ever deliver them again.
        """
        whole = Promise.of(decided)
        promise = whole and whole.part(self._participant)
        if promise is None or any(work.opened_at_ms < floor_ms for work in promise.works):
            return
        keys = [work.key for work in promise.works]

        def act(connection: Connection) -> tuple[set[str], set[str]]:
            # In this order: see works.py.
            open_ = waiting(connection, self._tables, keys)
            return witnessed(connection, self._tables, keys), open_

        there, open_ = self._session.run("looking for the rows of the last batch", act)
        missing = promise.missing([w.identity for w in promise.works if w.key in there])
        if missing:
            raise OwnershipError(self._lost(promise, missing.rows, set(keys) - there, open_))

    def _lost(self, promise: Promise, rows: int, gone: set[str], open_: set[str]) -> str:
        listed = ", ".join(sorted(gone - open_)) or "none"
        return (
            f"Batch {promise.batch_id} was delivered to {self._session.place}, which does not show "
            f"{rows} of its rows any more: a backup was put back, or a standby took over that was "
            "not synchronous. Earlier batches may be lost too, and nothing delivers them again. "
            "Compare the table with its source, and COMMIT PREPARED (never roll back) what waits "
            f"there for a batch that is over: {', '.join(sorted(open_)) or 'none of this one'}. To "
            f"go on without the rest ({listed}): give each of these keys a row in the table "
            f"{self._tables.schema}.works, with name {self._tables.name!r} and 0 rows."
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
            self._session.run("forgetting old witnesses", lambda c: self._move_floor(c, floor_ms))

    def _move_floor(self, connection: Connection, floor_ms: int) -> None:
        with connection.transaction():
            connection.execute(
                self._tables.statement(
                    "UPDATE {names} SET floor_ms = greatest(floor_ms, %s) WHERE name = %s"
                ),
                [floor_ms, self._tables.name],
            )
            connection.execute(
                self._tables.statement("DELETE FROM {works} WHERE name = %s AND opened_at_ms < %s"),
                [self._tables.name, floor_ms],
            )
