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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import ConfigurationError, DeliveryError
from airflow_eos.participants.upsert import statements as say
from airflow_eos.participants.upsert.columns import refuse_columns
from airflow_eos.participants.upsert.target import Lacking, Owner, epoch_text, not_ours
from airflow_eos.protocol.ownership import Note

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_eos.participants.upsert.target import About

_LOCKS_S = 60  # another committer of the same rows: it is at the same batch


@dataclass(frozen=True)
class PostgresUpsert:
    """A table of one database.

    Attributes:
        dsn: how it is reached: ``host=… dbname=… user=… password=…``, or a ``postgresql://`` URL.
        table: its name, or ``schema.name``, as it is (no quotes).
    """

    dsn: str = field(repr=False)
    table: str

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

    def refuse_rows(self, rows: pa.RecordBatch) -> None:
        """No text of PostgreSQL holds the character NUL."""
        import pyarrow as pa
        import pyarrow.compute as pc

        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
            if is_text and pc.any(pc.match_substring(column, "\0")).as_py():
                raise DeliveryError(
                    f"A text in column {name} holds the character NUL, which PostgreSQL refuses. "
                    "Nothing of its batch was written. Take it out (translate), or use bytea."
                )

    def open(self, *, timeout_s: float) -> PostgresTarget:
        """Reach it; nothing is asked yet."""
        return PostgresTarget(self.dsn, self.table, timeout_s=timeout_s)


class PostgresTarget:
    """See :class:`~airflow_eos.participants.upsert.target.Target`."""

    def __init__(self, dsn: str, table: str, *, timeout_s: float) -> None:
        try:
            import psycopg
        except ModuleNotFoundError as error:
            raise ConfigurationError(str(Lacking("postgres", "psycopg"))) from error
        self._psycopg: Any = psycopg
        self._dsn = dsn
        self._table = table
        self._timeout_s = timeout_s
        self._connected: Any = None

    @property
    def address(self) -> Mapping[str, str]:
        """The table."""
        return {"system": "postgres", "target": self._table}

    @property
    def give_up(self) -> str:
        """Keeps the mark and the last epoch."""
        return say.give_up(self._table)

    def check(self) -> None:
        """The primary, and our table is there."""
        with self._asking("looking at the server") as ask:
            if ask(say.IS_STANDBY)[0][0]:
                raise ConfigurationError(
                    "This PostgreSQL is a standby, which nobody can write to: give the primary "
                    "(target_session_attrs=read-write finds it)."
                )
            if ask(say.HAS_OURS)[0][0]:
                return
            # Two at once: one of them finds it there while it creates it, whatever IF NOT EXISTS.
            with contextlib.suppress(self._psycopg.errors.UniqueViolation):
                ask(say.CREATE_OURS)

    def described(self) -> say.Described:
        """What the database says of the table.

        Raises:
            ConfigurationError: there is none.
        """
        with self._asking("looking at the table") as ask:
            found = ask(say.TABLE, (say.quoted(self._table),))[0][0]
            if found is None:
                raise ConfigurationError(
                    f"There is no table {self._table!r} for this user: create it, with its key as "
                    "primary key and a column eos_version text."
                )
            return say.Described(
                columns={name: tuple(rest) for name, *rest in ask(say.COLUMNS, (found,))},
                keys=[set(names) for (names,) in ask(say.KEYS, (found,))],
                constraints=[name for (name,) in ask(say.CONSTRAINTS, (found,))],
            )

    def marked(self) -> str:
        """See :meth:`Target.marked`."""
        with self._asking("marking the target") as ask:
            ask(say.MARK, (self._table, uuid.uuid4().hex))
        return self.mark() or ""

    def mark(self) -> str | None:
        """See :meth:`Target.mark`."""
        with self._asking("reading the mark of the target") as ask:
            if not ask(say.HAS_OURS)[0][0]:
                return None
            found = ask(say.MARK_OF, (self._table,))
        return found[0][0] if found else None

    def claim(self, location: str, checkpoint: str) -> None:
        """See :meth:`Target.claim`."""
        with self._asking("claiming the target") as ask:
            ask(say.CLAIM, {"table": self._table, "at": location, "checkpoint": checkpoint})

    def owner(self) -> Owner | None:
        """See :meth:`Target.owner`."""
        with self._asking("reading whose the target is") as ask:
            found = ask(say.OWNER, (self._table,))
        return Owner(*found[0]) if found else None

    def note(self, note: Note, checkpoint: str) -> None:
        """See :meth:`Target.note`."""
        with self._asking("noting a decision") as ask:
            noted = ask(
                say.NOTE,
                {
                    "table": self._table,
                    "checkpoint": checkpoint,
                    "batch": note.batch,
                    "attempt": note.attempt,
                    "decision": note.decision,
                },
            )
        if not noted:
            raise self._not_ours(self.owner())

    def newest(self) -> Note | None:
        """See :meth:`Target.newest`."""
        with self._asking("reading how far the target has come") as ask:
            found = ask(say.NEWEST, (self._table,))
        return Note(*found[0]) if found else None

    def apply(self, rows: pa.Table, about: About, checkpoint: str, order: str) -> int:
        """See :meth:`Target.apply`."""
        names = rows.column_names
        written = say.upserted(self._table, names, about.key)
        with self._asking("writing rows") as ask, self._connected.transaction():
            owner = ask(say.OWNER_KEPT, (self._table,))
            if not owner or owner[0][1] != checkpoint:
                raise self._not_ours(Owner(*owner[0]) if owner else None)
            ask(say.temporary(self._table, names))
            with self._connected.cursor() as cursor, cursor.copy(say.copied(names)) as copy:
                for chunk in say.as_csv(rows, about.deleted, about.key):
                    copy.write(chunk)
            version = epoch_text(owner[0][2]) + order
            count = self._connected.execute(written, (version,)).rowcount
        return int(rows.num_rows - count)

    def close(self) -> None:
        """Close the connection."""
        if self._connected is not None:
            self._connected.close()
            self._connected = None

    def _not_ours(self, owner: Owner | None) -> Exception:
        return not_ours(f"Table {self._table!r} in PostgreSQL", owner, self.give_up)

    @contextlib.contextmanager
    def _asking(self, doing: str) -> Iterator[Any]:
        """A function that asks, on a connection that is opened again where it was lost."""
        try:
            if self._connected is None or self._connected.closed:
                self._connected = self._psycopg.connect(
                    self._dsn,
                    autocommit=True,
                    connect_timeout=max(2, int(self._timeout_s)),
                    application_name="airflow-eos",
                    options=f"-c lock_timeout={_LOCKS_S}s -c synchronous_commit=on",
                )
            yield self._ask
        except self._psycopg.Error as error:
            # The first line only: the others hold values of rows. Nor does it hold the DSN.
            said = error.diag.message_primary or str(error).partition("\n")[0]
            raise DeliveryError(
                f"PostgreSQL refused or did not answer while {doing} ({self._table}): "
                f"{type(error).__name__}: {said}. What was written is not known, and writing it "
                "again is harmless: put that right, then start the query again or run a recovery."
            ) from error

    def _ask(self, statement: Any, given: Any = None) -> list[Any]:
        cursor = self._connected.execute(statement, given)
        return list(cursor.fetchall()) if cursor.description else []
