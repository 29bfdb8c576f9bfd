"""The tables that the pipelines of a database share, beside the tables that they deliver to.

======================  ============================================================================
``airflow_eos_names``   one row a name: which database this is, whose the name is, how far it has
                        delivered, its generation, and the batch from which the next one is
                        counted
``airflow_eos_works``   the witness: one row for each piece of work, in the transaction of its rows
``airflow_eos_staged``  one row for each piece of work whose rows wait in a table of their own,
                        written before that table is made, and gone after it is dropped
======================  ============================================================================

MySQL commits whatever is open when a table is made or dropped, so neither is a part of a
transaction. A row of ``airflow_eos_staged`` with ``ended_at_ms`` is over: its table goes next.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from airflow_eos.participants.mysql.session import Connection, Session, asked, done
from airflow_eos.participants.sql.names import KeysOfName

NAMES, WORKS, STAGED = "airflow_eos_names", "airflow_eos_works", "airflow_eos_staged"
_HAS = """
SELECT count(*) FROM information_schema.tables
WHERE table_schema = database() AND table_name IN (%s, %s, %s)
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
    f"""
CREATE TABLE IF NOT EXISTS {STAGED} (
  work_key varchar(250) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY,
  name varchar(200) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  target varchar(64) NOT NULL, held longtext NOT NULL, row_count bigint,
  opened_at_ms bigint NOT NULL, ended_at_ms bigint,
  INDEX by_name (name, ended_at_ms)) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4
""",
)


@dataclass(frozen=True)
class Tables(KeysOfName):
    """Where the rows of a name are kept."""

    name: str

    def holding(self, key: str) -> str:
        """The table in which the rows of staged work wait (CheckpointFormatError)."""
        return f"{STAGED}_{self.own_part(key)}"


def make_tables(session: Session, tables: Tables) -> str:
    """Create what is missing; returns the mark of the name, a random id that never changes.

    Raises:
        ConfigurationError: the user may not.
    """

    def make(connection: Connection) -> str:
        if asked(connection, _HAS, NAMES, WORKS, STAGED) != [(3,)]:
            for statement in _TABLES:
                done(connection, statement)
        done(
            connection,
            f"INSERT IGNORE INTO {NAMES} (name, mark) VALUES (%s, %s)",  # noqa: S608 - ours
            tables.name,
            uuid.uuid4().hex,
        )
        [(mark,)] = asked(
            connection,
            f"SELECT mark FROM {NAMES} WHERE name = %s",  # noqa: S608 - ours
            tables.name,
        )
        return str(mark)

    return session.run("making the tables of the pipeline", make)
