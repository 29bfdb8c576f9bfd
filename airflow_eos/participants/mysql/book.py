"""What the database remembers of a name: whose it is, how far it is, and below what it forgets."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_eos.errors import StoreError
from airflow_eos.participants.mysql.session import Connection, Session, asked, done
from airflow_eos.participants.mysql.tables import NAMES, WORKS, Tables
from airflow_eos.participants.mysql.works import listed, sweep, waiting, witnessed
from airflow_eos.participants.sql.ledger import Asked, Standing, floor_of, standing_of
from airflow_eos.protocol.participant import Note

_STANDING = f"""
SELECT mark, owner, batch, attempt, decision, generation, counted_batch
FROM {NAMES} WHERE name = %s
"""  # noqa: S608 - ours, as all here
_CLAIM = f"UPDATE {NAMES} SET owner = %s WHERE name = %s AND owner IS NULL"  # noqa: S608
_NOTE = f"""
UPDATE {NAMES} SET batch = %s, attempt = %s, decision = %s
WHERE name = %s AND owner = %s AND (batch IS NULL OR (batch, attempt) < (%s, %s))
"""  # noqa: S608
_BEGIN = f"""
UPDATE {NAMES} SET generation = greatest(generation, %s), counted_batch = %s WHERE name = %s
"""  # noqa: S608
_FORGET = f"DELETE FROM {WORKS} WHERE name = %s AND generation < %s"  # noqa: S608


class MySqlBook:
    """See :class:`~airflow_eos.participants.sql.ledger.Book`.

    Args:
        session: to the database.
        tables: of the name.
        mark: the random id of the name in this database, which another one does not have.
    """

    tables = (NAMES, WORKS)

    def __init__(self, session: Session, tables: Tables, mark: str) -> None:
        self._session = session
        self._own = tables
        self._mark = mark

    @property
    def name(self) -> str:
        """The name."""
        return self._own.name

    @property
    def called(self) -> str:
        """The name and its database, for people."""
        return f"name {self.name!r} in {self._session.place}"

    def standing(self) -> Standing:
        """See :meth:`Book.standing`."""
        return self._session.run("asking who owns the name", self.row)

    def ask(self, keys: Sequence[str]) -> Asked:
        """See :meth:`Book.ask`."""

        def ask(connection: Connection) -> Asked:
            self.row(connection)
            open_ = waiting(connection, keys)
            there = witnessed(connection, keys)
            # Last: what has gone meanwhile was below the floor by then.
            return Asked(self.row(connection).floor, open_, there)

        return self._session.run("asking for outcomes", ask)

    def listed(self) -> list[tuple[str, int, str]]:
        """See :meth:`Book.listed`."""

        def ask(connection: Connection) -> list[tuple[str, int, str]]:
            self.row(connection)
            return listed(connection, self._own)

        return self._session.run("listing what waits", ask)

    def claim(self, owner: str) -> None:
        """See :meth:`Book.claim`."""

        def act(connection: Connection) -> None:
            self.row(connection)
            done(connection, _CLAIM, owner, self.name)

        self._session.run("claiming the name", act)

    def note(self, note: Note, owner: str) -> Standing:
        """See :meth:`Book.note`; and what crashes have left goes."""

        def act(connection: Connection) -> Standing:
            before = self.row(connection)
            place = (note.batch, note.attempt)
            done(connection, _NOTE, *place, note.decision, self.name, owner, *place)
            sweep(connection, self._own)
            return before

        return self._session.run("noting a decision", act)

    def begin_generation(self, generation: int, counted: int) -> None:
        """See :meth:`Book.begin_generation`."""

        def act(connection: Connection) -> None:
            done(connection, _BEGIN, generation, counted, self.name)
            done(connection, _FORGET, self.name, floor_of(generation))

        self._session.run("forgetting old witnesses", act)

    def row(self, connection: Connection) -> Standing:
        """The row of the name, refused where it is another database's.

        Rows that are not there say nothing where this is not the database of the work.

        Raises:
            StoreError: it has another mark, or none.
        """
        found = asked(connection, _STANDING, self.name)
        if not found or found[0][0] != self._mark:
            raise StoreError(
                f"This is not the database of {self.name!r}: its mark in {NAMES} is "
                f"{found[0][0] if found else 'missing'}, expected {self._mark}. Nothing was "
                "concluded from rows that are not there. Is the connection right?"
            )
        return standing_of(found[0][1:])
