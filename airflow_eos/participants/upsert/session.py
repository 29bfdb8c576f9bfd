"""One connection to PostgreSQL, opened again where it was lost; and its errors in our words."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from airflow_eos.errors import ConfigurationError, DeliveryError
from airflow_eos.participants.sql.libpq import OF_SESSION, OF_TRANSACTION, attentive
from airflow_eos.participants.upsert import statements as say
from airflow_eos.participants.upsert.idle import Idle
from airflow_eos.participants.upsert.target import Lacking

Ask = Callable[..., list[Any]]

_LOCKS_MS = 60_000  # another committer of the same rows: it is at the same batch


class Session:
    """The table of a target in its database.

    Args:
        dsn: how it is reached.
        table: its name as the user gave it.
        timeout_s: seconds to connect.
    """

    def __init__(self, dsn: str, table: str, *, timeout_s: float) -> None:
        try:
            import psycopg
        except ModuleNotFoundError as error:
            raise ConfigurationError(str(Lacking("postgres", "psycopg"))) from error
        self.errors: Any = psycopg.errors
        self.connected: Any = None
        self._connect: Any = psycopg.connect
        self._error: Any = psycopg.Error
        self._read_committed: Any = psycopg.IsolationLevel.READ_COMMITTED
        self._unreadable: Any = psycopg.ProgrammingError
        self._dsn = dsn
        self._asked_for = table
        self._timeout_s = timeout_s
        self._idle = Idle()
        self._found: tuple[int, str, str] | None = None

    @contextlib.contextmanager
    def asking(self, doing: str) -> Iterator[Ask]:
        """A function (statement, arguments) that gives all rows of the answer.

        Raises:
            DeliveryError: the server refused, or did not answer.
            ConfigurationError: the DSN cannot be read.
        """
        try:
            self._let_go_if_lost()
            if self.connected is None or self.connected.closed:
                self.connected = self._connect(
                    self._dsn,
                    autocommit=True,
                    application_name="airflow-eos",
                    client_encoding="utf8",
                    # A pooler may give each transaction another connection, which knows no name.
                    prepare_threshold=None,
                    **attentive(self._dsn, self._timeout_s),
                )
                self.connected.read_only = False
                self.connected.isolation_level = self._read_committed
                self.connected.execute(OF_SESSION)
                self._require_primary()
            yield self._ask
        except self._unreadable as error:
            if error.sqlstate is not None:
                raise self._meant(doing, error) from error
            raise ConfigurationError(
                "The DSN of PostgreSQL cannot be read: expected host=… dbname=… user=… password=…, "
                "with quotes around what has spaces, or postgresql://user:password@host/dbname."
            ) from None  # it quotes parts of it
        except self._error as error:
            raise self._meant(doing, error) from error

    @contextlib.contextmanager
    def writing(self, doing: str) -> Iterator[Ask]:
        """The same, in one transaction, which is durable where this ends."""
        with self.asking(doing) as ask, self.connected.transaction():
            ask(OF_TRANSACTION)
            ask(say.LOCKS, (str(_LOCKS_MS),))
            yield ask

    def _let_go_if_lost(self) -> None:
        """The server, or what is between, may have closed what nobody has used for long."""
        if self._idle.ends() and self.connected is not None:
            try:
                self.connected.execute("SELECT 1")
            except self._error:
                self.close()

    def _require_primary(self) -> None:
        """A standby lags: what it does not have says nothing."""
        if self.connected.execute(say.IS_STANDBY).fetchone()[0]:
            self.close()
            raise ConfigurationError(
                "This PostgreSQL is a standby, which nobody can write to: give the primary "
                "(target_session_attrs=read-write finds it)."
            )

    def _meant(self, doing: str, error: Any) -> DeliveryError:
        # The first line only: the others hold values of rows. Nor does it hold the DSN.
        said = error.diag.message_primary or str(error).partition("\n")[0]
        return DeliveryError(
            f"PostgreSQL refused or did not answer while {doing} ({self._asked_for}): "
            f"{type(error).__name__}: {said}. What was written is not known, and writing it again "
            "is harmless: put that right, then start the query again or run a recovery."
        )

    @property
    def oid(self) -> int:
        """The table's id."""
        return self._place[0]

    @property
    def schema(self) -> str:
        """Its schema, in quotes."""
        return say.quoted(self._place[1])

    @property
    def table(self) -> str:
        """``schema.name``: one table has one name."""
        _, schema, name = self._place
        return f"{schema}.{name}"

    @property
    def ours(self) -> str:
        """Our own table, beside it."""
        return f"{self.schema}.{say.OURS}"

    def close(self) -> None:
        """Close the connection."""
        if self.connected is not None:
            self.connected.close()
            self.connected = None

    def _ask(self, statement: str, given: Any = None) -> list[Any]:
        cursor = self.connected.execute(statement.replace(say.OURS, self.ours), given)
        return list(cursor.fetchall()) if cursor.description else []

    @property
    def _place(self) -> tuple[int, str, str]:
        """As the database resolves what the user gave."""
        if self._found is None:
            with self.asking("looking for the table"):
                asked = say.quoted(self._asked_for)
                found = self.connected.execute(say.PLACE, (asked,)).fetchone()
            if found is None:
                raise ConfigurationError(
                    f"There is no table {self._asked_for!r} for this user: create it, with its key "
                    "as primary key and a column eos_version text."
                )
            self._found = found
        return self._found
