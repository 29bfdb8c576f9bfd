"""The tables that the pipelines of a database share, in a schema of their own.

==========  ========================================================================================
``names``   one row a name: which database this is, whose the name is, how far it has delivered, and
            the floor, below which witnesses may be gone
``works``   the witness: one row for each piece of work, in the transaction of its rows
``staged``  one row for each piece of work whose rows wait in a table of their own
==========  ========================================================================================

A name is ``<gid prefix>.<participant>``, and a key of it is ``<name>-<task>-<attempt>-<32 hex>``:
what is before the last three parts is the name, so none is ever taken for the beginning of another.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

from psycopg import errors, sql

from airflow_eos.errors import CheckpointFormatError, ConfigurationError
from airflow_eos.participants.postgres.session import Connection, Session

DEFAULT_SCHEMA = "airflow_eos"
_PREFIX = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)
_OF_TASK = re.compile(r"(.+)-\d{1,10}-\d{1,10}-([0-9a-f]{32})", re.ASCII)
_LOCK = 7_294_311_208_554_001  # of our own, so that two first starts do not create at once

_TABLES = """
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.names (
    name text PRIMARY KEY, mark text NOT NULL, owner text,
    batch bigint, attempt integer, decision text, floor_ms bigint NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS {schema}.works (
    key text PRIMARY KEY, name text NOT NULL, rows bigint NOT NULL,
    opened_at_ms bigint NOT NULL DEFAULT (extract(epoch FROM now()) * 1000)::bigint);
CREATE INDEX IF NOT EXISTS works_by_age ON {schema}.works (name, opened_at_ms);
CREATE TABLE IF NOT EXISTS {schema}.staged (
    key text PRIMARY KEY, name text NOT NULL, target text NOT NULL, rows bigint NOT NULL,
    opened_at_ms bigint NOT NULL DEFAULT (extract(epoch FROM now()) * 1000)::bigint);
"""


@dataclass(frozen=True)
class Tables:
    """Where a name's rows are kept; gives statements with all names quoted."""

    schema: str
    name: str

    def statement(self, text: str, **parts: sql.Composable) -> sql.Composed:
        """``text`` with {names}, {works}, {staged}, {schema} and ``parts`` put in."""
        ours = {table: sql.Identifier(self.schema, table) for table in ("names", "works", "staged")}
        return sql.SQL(text).format(schema=sql.Identifier(self.schema), **ours, **parts)

    def new_key(self, task: int, attempt: int) -> str:
        """A key that is never used again in any database."""
        return f"{self.name}-{task}-{attempt}-{uuid.uuid4().hex}"

    def is_own(self, key: str) -> bool:
        """Whether it is a key of this name."""
        found = _OF_TASK.fullmatch(key)
        return found is not None and found[1] == self.name

    def holding(self, key: str) -> sql.Identifier:
        """The table in which the rows of staged work wait.

        Raises:
            CheckpointFormatError: it is no key of this name.
        """
        return sql.Identifier(self.schema, f"staged_{self.checked(key)[-32:]}")

    def checked(self, key: str) -> str:
        """Return ``key`` if it is of this name (CheckpointFormatError)."""
        if not self.is_own(key):
            raise CheckpointFormatError(
                f"{key!r} is no key of {self.name!r}: expected {self.name}-TASK-ATTEMPT-ID. "
                "Nothing was done with it."
            )
        return key


def name_of(gid_prefix: str, participant: str) -> str:
    """The name under which all of it goes (ConfigurationError)."""
    if _PREFIX.fullmatch(gid_prefix) is None:
        raise ConfigurationError(
            f"gid_prefix {gid_prefix!r}: expected 1 to 80 letters, digits, underscores or hyphens."
        )
    return f"{gid_prefix}.{participant}"


def make_tables(session: Session, tables: Tables) -> str:
    """Create what is missing; returns the mark of the name, a random id that never changes.

    Raises:
        ConfigurationError: the role may not: the statements that somebody else may run.
    """

    def make(connection: Connection) -> str:
        if not _are_there(connection, tables):
            statements = tables.statement(_TABLES)
            try:
                with connection.transaction():
                    connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
                    connection.execute(statements)
            except errors.InsufficientPrivilege as error:
                raise ConfigurationError(
                    f"The role may not create the tables of schema {tables.schema!r} "
                    f"({error.diag.message_primary}). Let somebody who may run this once:\n"
                    f"{statements.as_string(connection)}\nGRANT USAGE ON SCHEMA … TO the role, "
                    "and SELECT, INSERT, UPDATE, DELETE on its tables (CREATE on the schema too "
                    "for two_phase=False)."
                ) from error
        connection.execute(
            tables.statement(
                "INSERT INTO {names} (name, mark) VALUES (%s, %s) ON CONFLICT DO NOTHING"
            ),
            [tables.name, uuid.uuid4().hex],
        )
        found = connection.execute(
            tables.statement("SELECT mark FROM {names} WHERE name = %s"), [tables.name]
        ).fetchone()
        assert found is not None  # noqa: S101 - it was inserted, and nobody deletes it
        return str(found[0])

    return session.run("making the tables of the pipeline", make)


def _are_there(connection: Connection, tables: Tables) -> bool:
    found = connection.execute(
        "SELECT count(*) FROM pg_tables WHERE schemaname = %s AND tablename = ANY(%s)",
        [tables.schema, ["names", "works", "staged"]],
    ).fetchone()
    return found == (3,)
