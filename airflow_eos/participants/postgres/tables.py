"""The tables that the pipelines of a database share, in a schema of their own.

==========  ========================================================================================
``names``   one row a name: which database this is, whose the name is, how far it has delivered,
            its generation, and the batch from which the next one is counted
``works``   the witness: one row for each piece of work, in the transaction of its rows
``staged``  one row for each piece of work whose rows wait in a table of their own
==========  ========================================================================================

Names and keys are those of :mod:`airflow_eos.participants.sql.names`.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from psycopg import errors, sql

from airflow_eos.errors import ConfigurationError
from airflow_eos.participants.postgres.session import Connection, Session, durable
from airflow_eos.participants.sql.names import KeysOfName

DEFAULT_SCHEMA = "airflow_eos"
_LOCK = 7_294_311_208_554_001  # of our own, so that two first starts do not create at once

_NEWEST = 2**63 - 1  # of a witness that a person writes: never below the floor
_TABLES = """
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.names (
    name text PRIMARY KEY, mark text NOT NULL, owner text,
    batch bigint, attempt integer, decision text, generation bigint NOT NULL DEFAULT 0,
    counted_batch bigint);
CREATE TABLE IF NOT EXISTS {schema}.works (
    key text PRIMARY KEY, name text NOT NULL, rows bigint NOT NULL,
    generation bigint NOT NULL DEFAULT {newest});
CREATE INDEX IF NOT EXISTS works_by_age ON {schema}.works (name, generation);
CREATE TABLE IF NOT EXISTS {schema}.staged (
    key text PRIMARY KEY, name text NOT NULL, target text NOT NULL, rows bigint NOT NULL,
    opened_at_ms bigint NOT NULL DEFAULT (extract(epoch FROM now()) * 1000)::bigint);
"""


@dataclass(frozen=True)
class Tables(KeysOfName):
    """Where a name's rows are kept; gives statements with all names quoted."""

    schema: str
    name: str

    def statement(self, text: str, **parts: sql.Composable) -> sql.Composed:
        """``text`` with {names}, {works}, {staged}, {schema} and ``parts`` put in."""
        ours = {table: sql.Identifier(self.schema, table) for table in ("names", "works", "staged")}
        return sql.SQL(text).format(schema=sql.Identifier(self.schema), **ours, **parts)

    def holding(self, key: str) -> sql.Identifier:
        """The table in which the rows of staged work wait.

        Raises:
            CheckpointFormatError: it is no key of this name.
        """
        return sql.Identifier(self.schema, f"staged_{self.own_part(key)}")


def make_tables(session: Session, tables: Tables) -> str:
    """Create what is missing; returns the mark of the name, a random id that never changes.

    Raises:
        ConfigurationError: the role may not: the statements that somebody else may run.
    """

    def make(connection: Connection) -> str:
        if not _are_there(connection, tables):
            statements = tables.statement(_TABLES, newest=sql.Literal(_NEWEST))
            try:
                with durable(connection):
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
        with durable(connection):
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
