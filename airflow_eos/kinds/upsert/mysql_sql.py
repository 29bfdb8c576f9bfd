"""What is said to MySQL and MariaDB, and what a table there must be like."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import ConfigurationError
from airflow_eos.kinds.upsert.columns import VERSION, Limits

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_eos.kinds.upsert.target import RowSchema

_ROWS = 2000

MODE = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION"
LOCKS_S = 60
HAS_OURS = "SHOW TABLES LIKE 'airflow\\_eos\\_upserts'"
CREATE_OURS = """
CREATE TABLE IF NOT EXISTS airflow_eos_upserts (
  target varchar(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY,
  mark char(32) NOT NULL, last_epoch bigint NOT NULL DEFAULT 0,
  owner_location text, owner_checkpoint text, owner_epoch bigint,
  note_batch bigint, note_attempt bigint, note_decision text,
  tally bigint NOT NULL DEFAULT 0) ENGINE = InnoDB
"""
MARK = "INSERT IGNORE INTO airflow_eos_upserts (target, mark) VALUES (%s, %s)"
MARK_OF = "SELECT mark FROM airflow_eos_upserts WHERE target = %s"
# From left to right. An epoch is greater than all that were: where our row is new, or was removed,
# the rows tell which. No clock does: one that was put back would make all that comes older.
CLAIM = """
UPDATE airflow_eos_upserts SET
  last_epoch = 1 + if(last_epoch = 0, (SELECT coalesce(max(left(eos_version, 16)), '0')
    FROM {rows} WHERE eos_version REGEXP '^[0-9]{{16}}'), last_epoch),
  owner_epoch = last_epoch, owner_location = %s, owner_checkpoint = %s
WHERE target = %s AND owner_location IS NULL
"""
OWNER = """
SELECT owner_location, owner_checkpoint, owner_epoch FROM airflow_eos_upserts
WHERE target = %s AND owner_location IS NOT NULL
"""
NOTED = """
SELECT note_batch, note_attempt FROM airflow_eos_upserts
WHERE target = %s AND owner_checkpoint = %s FOR UPDATE
"""
NOTE = """
UPDATE airflow_eos_upserts SET note_batch = %s, note_attempt = %s, note_decision = %s
WHERE target = %s
"""
NEWEST = """
SELECT note_batch, note_attempt, note_decision FROM airflow_eos_upserts
WHERE target = %s AND note_batch IS NOT NULL
"""
LIFE = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('server_id', 'server_uuid', 'hostname')"
TALLY = "SELECT tally FROM airflow_eos_upserts WHERE target = %s"
COUNT = """
UPDATE airflow_eos_upserts SET tally = last_insert_id(tally + 1) WHERE target = %s AND tally >= %s
"""
COUNTED = "SELECT last_insert_id()"
GO_ON = """
UPDATE airflow_eos_upserts SET tally = {0}, note_batch = NULL, note_attempt = NULL,
note_decision = NULL WHERE target = '{1}'
""".strip().replace("\n", " ")
GIVE_UP = """
UPDATE airflow_eos_upserts SET owner_location = NULL, owner_checkpoint = NULL, owner_epoch = NULL,
note_batch = NULL, note_attempt = NULL, note_decision = NULL WHERE target = %s
""".strip().replace("\n", " ")
_ENGINE = """
SELECT engine FROM information_schema.tables WHERE table_schema = database() AND table_name = %s
"""
_COLUMNS = """
SELECT column_name, lower(column_type), is_nullable = 'NO' AND column_default IS NULL,
       extra LIKE '%%generated%%' OR extra LIKE '%%auto_increment%%', coalesce(collation_name, '')
FROM information_schema.columns WHERE table_schema = database() AND table_name = %s
"""
# The beginning of a column is none: rows that differ after it would be one.
_KEYS = """
SELECT index_name, group_concat(concat_ws('(', column_name, sub_part) SEPARATOR '\\0')
FROM information_schema.statistics
WHERE table_schema = database() AND table_name = %s AND non_unique = 0 GROUP BY index_name
"""
_LENGTHS = """
SELECT column_name, character_maximum_length, character_octet_length, character_set_name
FROM information_schema.columns WHERE table_schema = database() AND table_name = %s
AND character_octet_length IS NOT NULL
"""
_PARTITIONS = """
SELECT partition_method FROM information_schema.partitions WHERE table_schema = database()
AND table_name = %s AND (partition_method LIKE 'RANGE%%' OR partition_method LIKE 'LIST%%')
GROUP BY partition_method HAVING sum(partition_description IN ('MAXVALUE', 'DEFAULT')) = 0
"""
_CONSTRAINTS = """
SELECT constraint_name FROM information_schema.table_constraints
WHERE table_schema = database() AND table_name = %s AND constraint_type IN ('CHECK', 'FOREIGN KEY')
"""

_FITS = {
    "boolean": r"tinyint\(1\)|bool(ean)?",
    "tinyint": r"(tiny|small|big)?int(\(\d+\))?",
    "smallint": r"(small|big)?int(\(\d+\))?",
    "int": r"(big)?int(\(\d+\))?",
    "bigint": r"bigint(\(\d+\))?",
    "float": r"double",
    "double": r"double",
    "string": r"(medium|long)?text|varchar\(\d+\)",
    "binary": r"(medium|long)?blob|varbinary\(\d+\)",
    "date": r"date",
    "timestamp": r"datetime\(6\)",
    "timestamp_ntz": r"datetime\(6\)",
}
"""By Spark's type, those of MySQL; how long a text may be is the user's to know."""
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_EXACT = ("_nopad_bin", "_0900_bin")
"""Collations that take no two texts for one; ``_bin`` alone passes over spaces at the end."""


def refuse_table(
    cursor: Any, table: str, columns: Mapping[str, str], key: Sequence[str], deleted: str | None
) -> None:
    """Refuse a table that lacks a column, or that could refuse a row.

    Raises:
        ConfigurationError: all that is wrong, and what was expected.
    """
    cursor.execute(_ENGINE, (table,))
    engine = cursor.fetchone()
    if engine is None:
        raise ConfigurationError(
            f"There is no table {table!r} for this user: create it, with its key as primary key "
            "and a column eos_version varchar(64)."
        )
    wrong = [] if engine[0] == "InnoDB" else [f"is {engine[0]}'s, which has no transactions"]
    cursor.execute(_COLUMNS, (table,))
    found = {name: tuple(rest) for name, *rest in cursor.fetchall()}
    wrong += _of_columns(found, columns, set(key), deleted)
    cursor.execute(_KEYS, (table,))
    keys = [set(names.split("\0")) for _, names in cursor.fetchall()]
    cursor.execute(_CONSTRAINTS, (table,))
    wrong += [
        f"has the constraint {name}, which could refuse a row" for (name,) in cursor.fetchall()
    ]
    cursor.execute(_PARTITIONS, (table,))
    wrong += [
        f"is partitioned by {method} and has none for every row (MAXVALUE, DEFAULT)"
        for (method,) in cursor.fetchall()
    ]
    wrong += [
        f"fills {name} itself (by an expression, or by numbers that end): it could refuse a row"
        for name, (_, _, generated, _) in found.items()
        if generated and name not in {*columns, VERSION, *key}
    ]
    if keys != [set(key)]:
        wrong.append(f"has other keys than one primary key of just {', '.join(key)}, as a whole")
    if wrong:
        raise ConfigurationError(
            f"Table {table!r} {'; '.join(wrong)}. What is decided must be written, or the pipeline "
            "stands still: change the table, or the columns (cast, drop) before the first row."
        )


def limits(cursor: Any, table: str) -> Limits:
    """How long values of the table may be."""
    cursor.execute(_LENGTHS, (table,))
    lengths = cursor.fetchall()
    cursor.execute("SELECT @@max_allowed_packet")
    return Limits(
        characters={name: most for name, most, _, charset in lengths if charset is not None},
        # Ours are those of UTF-8.
        octets={
            name: octets
            for name, _, octets, charset in lengths
            if (charset or "utf8")[:4] == "utf8"
        },
        row=cursor.fetchone()[0],
    )


def _of_columns(
    found: Mapping[str, tuple[str, int, int, str]],
    columns: Mapping[str, str],
    key: set[str],
    deleted: str | None,
) -> list[str]:
    wrong = []
    for name, spark in {VERSION: "string", **columns}.items():
        if name not in found:
            wrong.append(f"has no column {name} ({'varchar(64)' if name == VERSION else spark})")
            continue
        kind, required, generated, collation = found[name]
        if not fits(spark, kind):
            wrong.append(f"has {name} as {kind}, which does not hold every {spark}")
        if collation and name != VERSION and not collation.startswith("utf8mb4"):
            wrong.append(f"has {name} in {collation}, which does not hold every text (utf8mb4)")
        if collation and name in key and not collation.endswith(_EXACT):
            wrong.append(
                f"has the key {name} in {collation}, which takes different texts for one "
                "(utf8mb4_nopad_bin in MariaDB, utf8mb4_0900_bin in MySQL)"
            )
        if "%" in name:
            wrong.append(f"has a per cent sign in the name {name}, which PyMySQL cannot write")
        if generated:
            wrong.append(f"generates {name} itself")
        if required and name not in {*key, deleted}:
            wrong.append(f"has {name} NOT NULL, and the query may give a null")
    wrong += [
        f"needs a value for {name}, which the rows do not have"
        for name, (_, required, generated, _) in found.items()
        if required and not generated and name not in columns and name != VERSION
    ]
    if VERSION in columns:
        wrong.append(f"keeps the versions of rows in {VERSION}, which is a column of the query too")
    return wrong


def fits(spark: str, kind: str) -> bool:
    """Whether a column of MySQL's ``kind`` holds every value of a Spark type."""
    if decimal := _DECIMAL.fullmatch(spark):
        held = _DECIMAL.fullmatch(kind)
        digits, scale = int(decimal[1]), int(decimal[2])
        return held is not None and (
            int(held[2]) >= scale and int(held[1]) - int(held[2]) >= digits - scale
        )
    return re.fullmatch(_FITS.get(spark, "(?!)"), kind) is not None


def upserted(table: str, names: Sequence[str], key: Sequence[str]) -> str:
    """One row, with its version as the last value; PyMySQL makes many of it."""
    version = quoted(VERSION)
    later = f"{version} IS NULL OR {version} <= VALUES({version})"
    given = [*(quoted(name) for name in names if name not in key), version]
    columns = ", ".join([*map(quoted, names), version])
    values = ", ".join(f"{each} = IF({later}, VALUES({each}), {each})" for each in given)
    holes = ", ".join(["%s"] * (len(names) + 1))
    return (
        f"INSERT INTO {quoted(table)} ({columns}) VALUES ({holes}) "  # noqa: S608 - names in quotes
        f"ON DUPLICATE KEY UPDATE {values}"
    )


def values(rows: pa.Table, about: RowSchema, version: str) -> Iterator[list[tuple[Any, ...]]]:
    """Rows with their version, in the order of the key: so that committers seldom meet."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = rows.sort_by([(name, "ascending") for name in about.key])
    gone = None if about.deleted is None else pc.fill_null(rows[about.deleted], False)  # noqa: FBT003
    columns = []
    for name in rows.column_names:
        column = gone if name == about.deleted and gone is not None else rows[name]
        if pa.types.is_timestamp(column.type) and column.type.tz is not None:
            column = column.cast(pa.timestamp("us", "UTC"))
        if gone is not None and name not in {*about.key, about.deleted}:
            column = pc.if_else(gone, pa.scalar(None, column.type), column)
        columns.append(column)
    for at in range(0, rows.num_rows, _ROWS):
        some = [column.slice(at, _ROWS).to_pylist() for column in columns]
        yield [(*row, version) for row in zip(*some, strict=True)]


def quoted(name: str) -> str:
    """A name as SQL text."""
    return "`" + name.replace("`", "``") + "`"
