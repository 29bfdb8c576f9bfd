"""What is said to PostgreSQL, and rows in the form in which it copies them."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from airflow_eos.kinds.upsert.columns import VERSION

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS = 50_000  # in a piece of CSV
_ROWS_OF_BATCH = "eos_rows"

# Of one transaction: a pooler may give the next one another connection.
LOCKS = "SELECT set_config('lock_timeout', %s, true)"
IS_STANDBY = "SELECT pg_is_in_recovery()"
OURS = "airflow_eos_upserts"
"""Stands for our table in all that is asked; it lies in the schema of the target."""
HAS_OURS = """
SELECT count(*) > 0 FROM pg_class WHERE relname = 'airflow_eos' || '_upserts'
  AND relnamespace = %s::text::regnamespace
"""
CREATE_OURS = """
CREATE TABLE IF NOT EXISTS airflow_eos_upserts (
  target text PRIMARY KEY, mark text NOT NULL, last_epoch bigint NOT NULL DEFAULT 0,
  owner_location text, owner_checkpoint text, owner_epoch bigint,
  note_batch bigint, note_attempt bigint, note_decision text, tally bigint NOT NULL DEFAULT 0)
"""
MARK = "INSERT INTO airflow_eos_upserts (target, mark) VALUES (%s, %s) ON CONFLICT DO NOTHING"
MARK_OF = "SELECT mark FROM airflow_eos_upserts WHERE target = %s"
# An epoch is greater than all that were: where our row is new, or was removed, the rows tell which.
# No clock does: one that was put back would make all that comes older than what stands.
CLAIM = """
UPDATE airflow_eos_upserts SET (last_epoch, owner_epoch, owner_location, owner_checkpoint) = (
  SELECT epoch, epoch, %(at)s, %(checkpoint)s FROM (SELECT 1 + CASE last_epoch WHEN 0 THEN (
    SELECT coalesce(max(substring(eos_version FROM '^[0-9]{{16}}')), '0')::bigint FROM {rows})
    ELSE last_epoch END AS epoch) AS next)
WHERE target = %(table)s AND owner_location IS NULL
"""
OWNER = """
SELECT owner_location, owner_checkpoint, owner_epoch FROM airflow_eos_upserts
WHERE target = %s AND owner_location IS NOT NULL
"""
OWNER_KEPT = OWNER + " FOR SHARE"
"""Nobody gives it to another checkpoint until this transaction has ended."""
NOTE = """
UPDATE airflow_eos_upserts SET (note_batch, note_attempt, note_decision) = (
  SELECT batch, attempt, decision FROM (VALUES
    (note_batch, note_attempt, note_decision), (%(batch)s, %(attempt)s, %(decision)s)
  ) AS noted (batch, attempt, decision)
  WHERE batch IS NOT NULL ORDER BY batch DESC, attempt DESC LIMIT 1)
WHERE target = %(table)s AND owner_checkpoint = %(checkpoint)s
RETURNING target
"""
NEWEST = """
SELECT note_batch, note_attempt, note_decision FROM airflow_eos_upserts
WHERE target = %s AND note_batch IS NOT NULL
"""
LIFE = "SELECT extract(epoch FROM pg_postmaster_start_time())::text"
TALLY = "SELECT tally FROM airflow_eos_upserts WHERE target = %s"
COUNT = """
UPDATE airflow_eos_upserts SET tally = tally + 1 WHERE target = %s AND tally >= %s RETURNING tally
"""
PLACE = """
SELECT c.oid, n.nspname, c.relname FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
RIGHTS = """
SELECT wanted FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE']) AS wanted
WHERE NOT has_table_privilege(%(oid)s, wanted)
UNION ALL SELECT 'TEMPORARY (of the database)'
WHERE NOT has_database_privilege(current_database(), 'TEMPORARY')
"""
COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod), attnotnull AND NOT atthasdef,
       attgenerated <> '' OR attidentity <> ''
FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped
"""
# Ours is no ON CONFLICT of a deferrable index. A type of trigger: 4 is INSERT, 16 UPDATE.
PARTS = """
WITH parts AS (SELECT c.* FROM pg_class AS c
  WHERE c.oid = %(oid)s OR c.oid IN (SELECT relid FROM pg_partition_tree(%(oid)s)))
SELECT 'is UNLOGGED or temporary (' || relname || '), and empty after a crash of the server '
       '(ALTER TABLE … SET LOGGED)' FROM parts WHERE relpersistence <> 'p'
UNION ALL SELECT 'has the trigger ' || tgname || ', which could change, drop or refuse a row'
FROM pg_trigger JOIN parts ON parts.oid = tgrelid
WHERE NOT tgisinternal AND tgenabled IN ('O', 'A') AND tgtype & 20 <> 0
UNION ALL SELECT 'has the rule ' || rulename || ', which could change, drop or refuse a row'
FROM pg_rewrite JOIN parts ON parts.oid = ev_class WHERE ev_type IN ('2', '3')
UNION ALL SELECT 'has the index ' || i.indexrelid::regclass || ', of an expression, of some rows, '
       'or by ' || am.amname || ', which could refuse a row'
FROM pg_index AS i JOIN parts ON parts.oid = i.indrelid JOIN pg_class AS c ON c.oid = i.indexrelid
JOIN pg_am AS am ON am.oid = c.relam WHERE NOT i.indisunique
AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL OR am.amname NOT IN ('btree', 'hash', 'brin'))
UNION ALL SELECT 'generates ' || attname || ' by an expression, which could refuse a row'
FROM pg_attribute WHERE attrelid = %(oid)s AND attgenerated <> '' AND NOT attisdropped
UNION ALL SELECT 'numbers its rows by ' || attname || ', of a sequence that has an end: every '
       'row that is written takes a number, also where it replaces one (a sequence of bigint)'
FROM pg_attribute JOIN pg_depend ON refobjid = attrelid AND refobjsubid = attnum
JOIN pg_sequence ON seqrelid = objid
WHERE attrelid = %(oid)s AND classid = 'pg_class'::regclass AND seqmax < 2::numeric ^ 62
  AND NOT seqcycle
UNION ALL SELECT 'has the partitioned table ' || relname || ' without a DEFAULT partition, and '
       'would refuse a row that no partition takes'
FROM parts JOIN pg_partitioned_table ON partrelid = oid WHERE partdefid = 0 AND partstrat <> 'h'
UNION ALL SELECT 'has row-level security, which could refuse a row (use a role with BYPASSRLS)'
WHERE row_security_active(%(oid)s)
"""
INEXACT = """
SELECT a.attname FROM pg_attribute AS a JOIN pg_collation AS c ON c.oid = a.attcollation
WHERE a.attrelid = %s AND NOT c.collisdeterministic
"""
# Included columns tell no rows apart; an index that is not valid yet refuses them all the same.
KEYS = """
SELECT array_agg(a.attname::text) FILTER (WHERE i.indexprs IS NULL),
       i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
FROM pg_index AS i CROSS JOIN unnest(i.indkey) WITH ORDINALITY AS k (number, place)
LEFT JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.number
WHERE i.indrelid = %s AND i.indisunique AND k.place <= i.indnkeyatts
GROUP BY i.indexrelid
"""
# Of each, also what it includes: an entry holds all of it.
INDEXES = """
SELECT DISTINCT array_agg(a.attname::text ORDER BY k.place)
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_am AS am ON am.oid = c.relam
CROSS JOIN unnest(i.indkey) WITH ORDINALITY AS k (number, place)
JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.number
WHERE (i.indrelid = %(oid)s OR i.indrelid IN (SELECT relid FROM pg_partition_tree(%(oid)s)))
AND am.amname IN ('btree', 'brin') GROUP BY i.indexrelid
"""
ENCODING = "SHOW server_encoding"
CONSTRAINTS = """
SELECT conname FROM pg_constraint WHERE conrelid = %s AND contype IN ('c', 'f', 'x')
"""


def quoted(table: str) -> str:
    """A name, or ``schema.name``, as SQL text."""
    return ".".join(map(_name, table.split(".")))


def give_up(table: str) -> str:
    """What a person runs, so that another checkpoint may have the table."""
    return (
        "UPDATE airflow_eos_upserts SET owner_location = NULL, "  # noqa: S608 - a person reads it
        "owner_checkpoint = NULL, "
        "owner_epoch = NULL, note_batch = NULL, note_attempt = NULL, note_decision = NULL "
        f"WHERE target = '{table}'"
    )


def go_on(table: str, tally: int) -> str:
    """What a person runs, so that a target that was set back goes on without what it lacks."""
    return (
        f"UPDATE airflow_eos_upserts SET tally = {tally}, "  # noqa: S608 - a person reads it
        f"note_batch = NULL, note_attempt = NULL, note_decision = NULL WHERE target = '{table}'"
    )


def temporary(table: str, names: Sequence[str]) -> str:
    """A table of this transaction, with the columns of the rows in the types of the target."""
    return (
        f"CREATE TEMPORARY TABLE {_ROWS_OF_BATCH} ON COMMIT DROP AS "  # noqa: S608 - in quotes
        f"SELECT {_list(names)} FROM {quoted(table)} WITH NO DATA"
    )


def copied(names: Sequence[str]) -> str:
    """How they get there."""
    return f"COPY {_ROWS_OF_BATCH} ({_list(names)}) FROM STDIN (FORMAT csv, ENCODING 'UTF8')"


def upserted(table: str, names: Sequence[str], key: Sequence[str]) -> str:
    """From there into the target, with the version as the one argument.

    In the order of the key: two committers of the same rows wait for each other, and never in a
    circle.
    """
    given = [*(name for name in names if name not in key), VERSION]
    values = ", ".join(f"{_name(name)} = excluded.{_name(name)}" for name in given)
    target, columns, by, values = (
        text.replace("%", "%%") for text in (quoted(table), _list(names), _list(key), values)
    )
    return (
        f"INSERT INTO {target} AS t ({columns}, {VERSION}) "  # noqa: S608 - names in quotes
        f"SELECT {columns}, %s FROM {_ROWS_OF_BATCH} ORDER BY {by} "
        f"ON CONFLICT ({by}) DO UPDATE SET {values} WHERE t.{VERSION} IS NULL "
        f'OR t.{VERSION} COLLATE "C" <= excluded.{VERSION} COLLATE "C"'
    )


def as_csv(rows: pa.Table, deleted: str | None, key: Sequence[str]) -> Iterator[bytes]:
    """Text in quotes, and a null as nothing: as COPY reads it. What is deleted keeps its key."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    gone = None if deleted is None else pc.fill_null(rows[deleted], False)  # noqa: FBT003
    columns = []
    for name in rows.column_names:
        column = _text(gone if name == deleted else rows[name])
        if gone is not None and name not in key and name != deleted:
            column = pc.if_else(gone, pa.scalar(None, pa.string()), column)
        columns.append(column)
    text = pa.table(columns, names=rows.column_names)
    options = csv.WriteOptions(include_header=False)
    for at in range(0, text.num_rows, _ROWS):
        piece = io.BytesIO()
        csv.write_csv(text.slice(at, _ROWS), piece, options)
        yield piece.getvalue()


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow as pa

    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        # Arrow has no hex digits; a loop, for such columns alone.
        return pa.chunked_array(
            [[None if each is None else f"\\x{each.hex()}" for each in column.to_pylist()]],
            pa.string(),
        )
    if pa.types.is_floating(column.type):
        column = column.cast(pa.float64())  # a column may be wider, and hold more of its digits
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        # Where zones had offsets of seconds, their text has none.
        column = column.cast(pa.timestamp("us", "UTC"))
    return column.cast(pa.string())


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(_name, names))


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
