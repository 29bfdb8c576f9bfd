"""MySQL or MariaDB as a participant: rows wait in the checkpoint, one transaction inserts them.

A missing witness means ABORTED on the database that the rows were tried in. A replica that took
over and lagged has lost witnesses for good; so each start looks whether the rows of the last
delivered batch are there. A server that a failover left behind must be read-only, as failover tools
make it: nothing here can tell it from the primary.

No table is made or dropped but at the first start, and every statement has its values: a replica
may filter tables, in each format of the binary log.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pymysql

from airflow_eos.core.protocol.decision import PreparedWork
from airflow_eos.core.protocol.participant import Member
from airflow_eos.errors import CheckpointFormatError, ConfigurationError
from airflow_eos.kinds.mysql.session import (
    Connection,
    MySqlConnection,
    asked,
    done,
    holes,
    refuses_rows,
)
from airflow_eos.kinds.sql.kept import KEPT, kept_at, pieces_of
from airflow_eos.kinds.sql.keys import KeysOfName
from airflow_eos.kinds.sql.participant import OwnershipTable, SqlParticipant, ddl_refused
from airflow_eos.kinds.sql.servers import DENIED, as_text, number_of, reason

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint.store import CheckpointStore

NAMES, WORKS = "airflow_eos_names", "airflow_eos_works"
_HAS = """
SELECT count(*) FROM information_schema.tables
WHERE table_schema = database() AND table_name IN (%s, %s)
"""
_TABLES = (
    f"""
CREATE TABLE IF NOT EXISTS {NAMES} (
  name varchar(200) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY,
  mark char(32) NOT NULL, owner text, batch bigint, attempt int, decision text,
  generation bigint NOT NULL DEFAULT 0, counted_batch bigint)
  ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4
""",
    f"""
CREATE TABLE IF NOT EXISTS {WORKS} (
  work_key varchar(250) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY,
  name varchar(200) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, row_count bigint NOT NULL,
  generation bigint NOT NULL DEFAULT {2**63 - 1},
  INDEX by_age (name, generation)) ENGINE = InnoDB
""",
)


# The mark is written among the witnesses before the name: so a table that lost all of them is seen.
_WITNESS = f"""
INSERT IGNORE INTO {WORKS} (work_key, name, row_count, generation) VALUES (%s, %s, %s, %s)
"""  # noqa: S608 - ours, as all here
_MADE = f"INSERT IGNORE INTO {NAMES} (name, mark) VALUES (%s, %s)"  # noqa: S608
_UNMADE = f"DELETE FROM {WORKS} WHERE work_key = %s"  # noqa: S608
_INSTANCE_ID = f"SELECT mark FROM {NAMES} WHERE name = %s"  # noqa: S608


def make_tables(session: MySqlConnection, tables: KeysOfName) -> str:
    """Create missing tables; return the mark of the name, a random id that never changes.

    Raises:
        ConfigurationError: the user may not create tables.
    """

    def make(connection: Connection) -> str:
        if asked(connection, _HAS, NAMES, WORKS) != [(2,)]:
            _make(connection)
        if not asked(connection, _INSTANCE_ID, tables.name):
            instance_id = uuid.uuid4().hex
            done(connection, _WITNESS, instance_id, tables.name, 0, 2**63 - 1)
            if done(connection, _MADE, tables.name, instance_id) == 0:
                done(connection, _UNMADE, instance_id)  # another start was first
        [(instance_id,)] = asked(connection, _INSTANCE_ID, tables.name)
        return str(instance_id)

    return session.run("making the tables of the pipeline", make)


def _make(connection: Connection) -> None:
    try:
        for statement in _TABLES:
            done(connection, statement)
    except pymysql.MySQLError as error:
        if number_of(error) not in DENIED:
            raise
        raise ddl_refused(
            f"The tables {NAMES} and {WORKS} cannot be made: {reason(error)}.",
            ";".join(_TABLES) + ";\nGRANT SELECT, INSERT, UPDATE, DELETE on them to the user.",
        ) from error


# --- works ----------------------------------------------------------------------------------------
# Kept rows in MySQL: inserted by one transaction with a witness.


_WITNESSED = f"SELECT work_key, row_count FROM {WORKS} WHERE work_key IN "  # noqa: S608 - ours
_ENGINE = """
SELECT table_type, coalesce(engine, '') FROM information_schema.tables
WHERE table_schema = database() AND table_name = %s
"""


def require_kept(connection: Connection, table: str) -> None:
    """Refuse a table that cannot take rows together with their witness (ConfigurationError)."""
    found = asked(connection, _ENGINE, table)
    if not found:
        raise ConfigurationError(
            f"There is no table {table!r} in this database, or its user cannot see it. Create it "
            "first; the sink creates no tables of yours."
        )
    kind, engine = found[0]
    is_table = kind in ("BASE TABLE", "SYSTEM VERSIONED")  # MariaDB's, which keeps what was
    if not is_table or engine != "InnoDB":
        todo = f"ALTER TABLE {table} ENGINE = InnoDB" if is_table else "Deliver to one of them"
        raise ConfigurationError(
            f"{table!r} is {engine if is_table else kind}: rows can be moved together with their "
            f"witness into InnoDB's tables alone. {todo}."
        )


def inserted(connection: Connection, stream: bytes, where: str) -> int:
    """Run the kept statements, as they were tried; return how many rows the table has taken.

    Raises:
        ConfigurationError: the server takes shorter statements than it did.
    """
    [(packet,)] = asked(connection, "SELECT @@max_allowed_packet")
    taken = 0
    for each in pieces_of(stream, where):
        if len(each) > packet:
            raise ConfigurationError(
                f"The server's max_allowed_packet is {packet} by now, and rows that were promised "
                f"need {len(each)} bytes. Nothing of this work was made visible, and nothing is "
                f"lost. Set it to {len(each) + ROOM} or more, then start again."
            )
        taken += connection.query(bytes(each))
    return taken


ROOM = 1024
"""Bytes that a packet has beside a statement."""


# --- ownership table ------------------------------------------------------------------------------


class MySqlOwnershipTable(OwnershipTable):
    """See :class:`~airflow_eos.kinds.sql.participant.OwnershipTable`."""

    tables = (NAMES, WORKS)

    def _read(self, connection: Connection, statement: str, *given: Any) -> list[tuple[Any, ...]]:
        return asked(connection, statement.format(names=NAMES, works=WORKS), *given)

    def _write(self, connection: Connection, *changes: tuple[str, Sequence[Any]]) -> None:
        for statement, given in changes:
            done(connection, statement.format(names=NAMES, works=WORKS), *given)

    def _witnessed(self, connection: Connection, keys: Sequence[str]) -> dict[str, int]:
        return dict(asked(connection, f"{_WITNESSED}({holes(keys)})", *keys))

    def witness(self, connection: Connection, key: str, rows: int, generation: int) -> bool:
        """See :meth:`OwnershipTable.witness`."""
        return done(connection, _WITNESS, key, self.name, rows, generation) == 1


# --- participant ----------------------------------------------------------------------------------


KIND = "mysql"


class MySqlParticipant(SqlParticipant):
    """See :class:`airflow_eos.core.protocol.participant.Participant`."""

    kind = KIND
    book = MySqlOwnershipTable
    client_error = pymysql.MySQLError
    _session: MySqlConnection

    def check_detail(self, work: PreparedWork) -> None:
        """See :meth:`SqlParticipant.check_detail`."""
        if work.detail.get("form") != KEPT:
            raise CheckpointFormatError(
                f"Work {work.identity} has the detail {work.detail}: expected form ({KEPT}). Was "
                "the checkpoint written by a newer release? Then use that one."
            )

    def require_kept(self, table: str) -> None:
        """See :meth:`SqlParticipant.require_kept`."""
        self._session.run("looking at the table", lambda c: require_kept(c, table))

    @contextmanager
    def transaction(self, connection: Connection) -> Iterator[None]:
        """See :meth:`SqlParticipant.transaction`; an error closes the connection."""
        done(connection, "BEGIN")
        yield
        done(connection, "COMMIT")

    def insert(self, connection: Connection, stream: bytes, where: str) -> int:
        """See :meth:`SqlParticipant.insert`."""
        return inserted(connection, stream, where)

    def refusal(self, error: pymysql.MySQLError) -> str | None:
        """See :meth:`SqlParticipant.refusal`."""
        return reason(error) if refuses_rows(error) else None


def connect(
    member: Member, how: object, *, store: CheckpointStore | None = None, timeout_s: float = 30.0
) -> MySqlParticipant:
    """Connect to the database of ``member`` by ``how``: a URL, or its parts as a mapping.

    Raises:
        ConfigurationError: ``how`` is missing, or the address is not one of MySQL.
        StoreError: the database does not answer, or is another one.
    """
    address = member.address
    if not address.keys() >= {"name", "mark"}:
        raise ConfigurationError(f"{member}: eos/pipeline.json is not of mysql.")
    url = as_text("mysql", how)
    if url is None:
        raise ConfigurationError(
            f"{member}: give how to reach its database, by its name or its kind, such as "
            "reach={'mysql': 'mysql://user:password@host:3306/database'}; the checkpoint holds no "
            "passwords."
        )
    keys = KeysOfName(address["name"])
    participant = MySqlParticipant(
        MySqlConnection(url, timeout_s=timeout_s),
        keys,
        name=member.name,
        instance_id=address["mark"],
        kept=kept_at(store, member.name, keys),
    )
    return participant.reached()
