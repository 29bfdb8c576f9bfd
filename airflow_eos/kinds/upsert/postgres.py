"""Upserts into a table of PostgreSQL, and into what speaks its language.

The table has a unique key of just the key columns, and a column ``eos_version`` (text) for the
version of each row. What owns it is a row of ``airflow_eos_upserts``, a small table of ours. Rows
go by COPY into a temporary table, and from there by one statement, in one transaction: each row
with its version, and only while this checkpoint is the owner.

A deleted row stays as a tombstone: its flag, its key and its version, all else null. Readers leave
it out (``WHERE NOT gone``, or a view).
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import ConfigurationError, DeliveryError
from airflow_eos.kinds.sql.libpq import OF_SESSION, OF_TRANSACTION, attentive
from airflow_eos.kinds.upsert import postgres_sql as say
from airflow_eos.kinds.upsert.columns import (
    TableDescription,
    refuse_columns,
    refuse_long_keys,
    refuse_nul,
    refuse_texts,
    refuse_times,
)
from airflow_eos.kinds.upsert.target import (
    Idle,
    Lacking,
    TargetOwner,
    epoch_text,
    not_ours,
    one_of_each_number,
)
from airflow_eos.protocol.participant import Note

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_eos.kinds.upsert.target import RowSchema

Ask = Callable[..., list[Any]]

_LOCKS_MS = 60_000  # another committer of the same rows: it is at the same batch


class PostgresTable:
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


# --- postgres -------------------------------------------------------------------------------------
# Upserts into a table of PostgreSQL, and into what speaks its language.
#
# The table has a unique key of just the key columns, and a column ``eos_version`` (text) for the
# version of each row. What owns it is a row of ``airflow_eos_upserts``, a small table of ours. Rows
# go by COPY into a temporary table, and from there by one statement, in one transaction: each row
# with its version, and only while this checkpoint is the owner.
#
# A deleted row stays as a tombstone: its flag, its key and its version, all else null. Readers
# leave
# it out (``WHERE NOT gone``, or a view).


_KEY_BYTES = 2600  # a third of a page, less what an entry of a B-tree has besides its values


@dataclass(frozen=True)
class PostgresUpsert:
    """A table of one database.

    Attributes:
        dsn: how it is reached: ``host=… dbname=… user=… password=…``, or a ``postgresql://`` URL.
        table: its name, or ``schema.name``, as it is (no quotes).
        indexes: the columns of each of its indexes; see :meth:`told`.
    """

    dsn: str = field(repr=False)
    table: str
    indexes: tuple[tuple[str, ...], ...] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = self.table.split(".")
        if len(parts) > 2 or not all(parts):
            raise ConfigurationError(f"table {self.table!r}: expected a name, or schema.name.")

    def refuse(self, columns: Mapping[str, str], key: tuple[str, ...], deleted: str | None) -> None:
        """Refuse columns that the table has not, or that it could refuse once they are decided.

        Raises:
            ConfigurationError: which, and what to do.
            DeliveryError: the database does not answer.
        """
        target = self.open(timeout_s=30.0)
        try:
            refuse_columns(self.table, target.described(), columns, key, deleted)
        finally:
            target.close()

    def told(self) -> PostgresUpsert:
        """This table, with its indexes: see :meth:`UpsertTarget.told`; columns have no limits.

        Raises:
            DeliveryError: the database does not answer.
            ConfigurationError: there is no such table.
        """
        target = self.open(timeout_s=30.0)
        try:
            return replace(self, indexes=target.indexes())
        finally:
            target.close()

    def refuse_rows(self, rows: pa.RecordBatch, key: Sequence[str]) -> None:
        """Refuse what no column, and no index, of PostgreSQL holds."""
        refuse_texts(rows, "PostgreSQL")
        refuse_nul(rows)
        refuse_times(rows, "a row in SQL")
        refuse_long_keys(rows, key, _KEY_BYTES)
        for columns in self.indexes:
            refuse_long_keys(rows, [n for n in columns if n in rows.schema.names], _KEY_BYTES)

    def open(self, *, timeout_s: float) -> PostgresTarget:
        """Reach it; nothing is asked yet."""
        return PostgresTarget(self.dsn, self.table, timeout_s=timeout_s)


class PostgresTarget:
    """See :class:`~airflow_eos.kinds.upsert.target.UpsertConnection`."""

    def __init__(self, dsn: str, table: str, *, timeout_s: float) -> None:
        self._session = PostgresTable(dsn, table, timeout_s=timeout_s)

    @property
    def address(self) -> Mapping[str, str]:
        """The table, with its schema: one table has one name."""
        return {"system": "postgres", "target": self._session.table}

    @property
    def give_up(self) -> str:
        """Keeps the mark and the last epoch."""
        return say.give_up(self._session.table).replace(say.OURS, self._session.ours)

    def go_on(self, tally: int) -> str:
        """See :meth:`UpsertConnection.go_on`."""
        return say.go_on(self._session.table, tally).replace(say.OURS, self._session.ours)

    def check(self) -> None:
        """The primary, and our table is there."""
        with self._session.asking("looking at the server") as ask:
            if ask(say.HAS_OURS, (self._session.schema,))[0][0]:
                return
            # Two at once: one of them finds it there while it creates it, whatever IF NOT EXISTS.
            with contextlib.suppress(self._session.errors.UniqueViolation):
                ask(say.CREATE_OURS)

    def described(self) -> TableDescription:
        """What the database says of the table.

        Raises:
            ConfigurationError: there is none.
        """
        with self._session.asking("looking at the table") as ask:
            found = self._session.oid
            indexes = [(set(names or ()), is_key) for names, is_key in ask(say.KEYS, (found,))]
            return TableDescription(
                columns={name: tuple(rest) for name, *rest in ask(say.COLUMNS, (found,))},
                keys=[names for names, is_key in indexes if is_key],
                uniques=[names for names, _ in indexes],
                constraints=[name for (name,) in ask(say.CONSTRAINTS, (found,))],
                lacking=[right for (right,) in ask(say.RIGHTS, {"oid": found})],
                unfit=[what for (what,) in ask(say.PARTS, {"oid": found})],
                inexact=frozenset(name for (name,) in ask(say.INEXACT, (found,))),
                encoding=ask(say.ENCODING)[0][0],
            )

    def indexes(self) -> tuple[tuple[str, ...], ...]:
        """The columns of each index whose entries have a longest length."""
        with self._session.asking("looking at the table") as ask:
            return tuple(tuple(c) for (c,) in ask(say.INDEXES, {"oid": self._session.oid}))

    def marked(self) -> str:
        """See :meth:`UpsertConnection.marked`."""
        with self._session.writing("marking the target") as ask:
            ask(say.MARK, (self._session.table, uuid.uuid4().hex))
        return self.mark() or ""

    def mark(self) -> str | None:
        """See :meth:`UpsertConnection.mark`."""
        with self._session.asking("reading the mark of the target") as ask:
            if not ask(say.HAS_OURS, (self._session.schema,))[0][0]:
                return None
            found = ask(say.MARK_OF, (self._session.table,))
        return found[0][0] if found else None

    def claim(self, location: str, checkpoint: str) -> None:
        """See :meth:`UpsertConnection.claim`."""
        with self._session.writing("claiming the target") as ask:
            claim = say.CLAIM.format(rows=say.quoted(self._session.table).replace("%", "%%"))
            ask(claim, {"table": self._session.table, "at": location, "checkpoint": checkpoint})

    def owner(self) -> TargetOwner | None:
        """See :meth:`UpsertConnection.owner`."""
        with self._session.asking("reading whose the target is") as ask:
            found = ask(say.OWNER, (self._session.table,))
        return TargetOwner(*found[0]) if found else None

    def note(self, note: Note, checkpoint: str) -> None:
        """See :meth:`UpsertConnection.note`."""
        with self._session.writing("noting a decision") as ask:
            noted = ask(
                say.NOTE,
                {
                    "table": self._session.table,
                    "checkpoint": checkpoint,
                    "batch": note.batch,
                    "attempt": note.attempt,
                    "decision": note.decision,
                },
            )
        if not noted:
            raise self._not_ours(self.owner())

    def newest(self) -> Note | None:
        """See :meth:`UpsertConnection.newest`."""
        with self._session.asking("reading how far the target has come") as ask:
            found = ask(say.NEWEST, (self._session.table,))
        if not found:
            return None
        batch, attempt, decision = found[0]
        return Note(batch, attempt, decision, pipeline="")

    def life(self) -> str:
        """See :meth:`UpsertConnection.life`: no two servers start at one microsecond."""
        with self._session.asking("asking which server it is") as ask:
            return str(ask(say.LIFE)[0][0])

    def tally(self) -> int:
        """See :meth:`UpsertConnection.tally`."""
        with self._session.asking("reading how far the target has counted") as ask:
            found = ask(say.TALLY, (self._session.table,))
        return int(found[0][0]) if found else 0

    def count(self, known: int) -> int | None:
        """See :meth:`UpsertConnection.count`."""
        with self._session.writing("counting what was written") as ask:
            found = ask(say.COUNT, (self._session.table, known))
        return int(found[0][0]) if found else None

    def apply(self, rows: pa.Table, about: RowSchema, checkpoint: str, order: str) -> int:
        """See :meth:`UpsertConnection.apply`."""
        rows = one_of_each_number(rows, about.key)
        names = rows.column_names
        written = say.upserted(self._session.table, names, about.key)
        with self._session.writing("writing rows") as ask:
            owner = ask(say.OWNER_KEPT, (self._session.table,))
            if not owner or owner[0][1] != checkpoint:
                raise self._not_ours(TargetOwner(*owner[0]) if owner else None)
            ask(say.temporary(self._session.table, names))
            with self._session.connected.cursor() as cursor, cursor.copy(say.copied(names)) as copy:
                for chunk in say.as_csv(rows, about.deleted, about.key):
                    copy.write(chunk)
            version = epoch_text(owner[0][2]) + order
            count = self._session.connected.execute(written, (version,)).rowcount
        return int(rows.num_rows - count)

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def _not_ours(self, owner: TargetOwner | None) -> Exception:
        return not_ours(f"Table {self._session.table!r} in PostgreSQL", owner, self.give_up)
