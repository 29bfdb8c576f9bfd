"""What the database remembers of a name: whose it is, how far it is, and below what it forgets."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_eos.errors import StoreError
from airflow_eos.participants.postgres.session import Connection, Session, durable
from airflow_eos.participants.postgres.tables import Tables
from airflow_eos.participants.postgres.works import listed, waiting, witnessed
from airflow_eos.participants.sql.ledger import Asked, Standing, floor_of, standing_of
from airflow_eos.protocol.participant import Note

_STANDING = """
SELECT mark, owner, batch, attempt, decision, generation, counted_batch
FROM {names} WHERE name = %s
"""
_CLAIM = "UPDATE {names} SET owner = %s WHERE name = %s AND owner IS NULL"
_NOTE = """
UPDATE {names} SET batch = %(batch)s, attempt = %(attempt)s, decision = %(decision)s
WHERE name = %(name)s AND owner = %(owner)s
  AND (batch IS NULL OR (batch, attempt) < (%(batch)s, %(attempt)s))
"""
_BEGIN = """
UPDATE {names} SET generation = greatest(generation, %s), counted_batch = %s WHERE name = %s
"""
_FORGET = "DELETE FROM {works} WHERE name = %s AND generation < %s"


class PostgresBook:
    """See :class:`~airflow_eos.participants.sql.ledger.Book`.

    Args:
        session: to the database.
        tables: of the name.
        mark: the random id of the name in this database, which another one does not have.
    """

    def __init__(self, session: Session, tables: Tables, mark: str) -> None:
        self._session = session
        self._own = tables
        self._mark = mark

    @property
    def tables(self) -> tuple[str, str]:
        """See :attr:`Book.tables`."""
        return f"{self._own.schema}.names", f"{self._own.schema}.works"

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
            open_ = waiting(connection, self._own, keys)
            there = witnessed(connection, self._own, keys)
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
            with durable(connection):
                connection.execute(self._own.statement(_CLAIM), [owner, self.name])

        self._session.run("claiming the name", act)

    def note(self, note: Note, owner: str) -> Standing:
        """See :meth:`Book.note`."""

        def act(connection: Connection) -> Standing:
            before = self.row(connection)
            noted = {"batch": note.batch, "attempt": note.attempt, "decision": note.decision}
            given = {**noted, "name": self.name, "owner": owner}
            with durable(connection):
                connection.execute(self._own.statement(_NOTE), given)
            return before

        return self._session.run("noting a decision", act)

    def begin_generation(self, generation: int, counted: int) -> None:
        """See :meth:`Book.begin_generation`."""

        def act(connection: Connection) -> None:
            with durable(connection):
                connection.execute(self._own.statement(_BEGIN), [generation, counted, self.name])
                floor = floor_of(generation)
                connection.execute(self._own.statement(_FORGET), [self.name, floor])

        self._session.run("forgetting old witnesses", act)

    def row(self, connection: Connection) -> Standing:
        """The row of the name, refused where it is another database's.

        Rows that are not there say nothing where this is not the database of the work.

        Raises:
            StoreError: it has another mark, or none.
        """
        found = connection.execute(self._own.statement(_STANDING), [self.name]).fetchone()
        if found is None or found[0] != self._mark:
            raise StoreError(
                f"This is not the database of {self.name!r}: its mark in {self.tables[0]} is "
                f"{found[0] if found else 'missing'}, expected {self._mark}. Nothing was "
                "concluded from rows that are not there. Is the connection right?"
            )
        return standing_of(found[1:])
