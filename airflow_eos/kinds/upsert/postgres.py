"""Upserts into a table of PostgreSQL, or of a database with its protocol.

The table has a unique key of just the key columns, and a column ``eos_version`` (text) for the
version of each row. The owner is in a row of ``airflow_eos_upserts``, a small table of ours. Rows
go as arrays, one of each column, in one transaction: each row with its version, and only while this
checkpoint is the owner. No table is made for them, which a rule on DDL could forbid. A task has
tried them before they are decided, in a transaction that it rolled back.

A deleted row stays as a tombstone: its flag, its key and its version, all else null. Readers leave
it out (``WHERE NOT gone``, or a view).
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_eos.core.arguments import take_fields
from airflow_eos.errors import ConfigurationError, DeliveryError, StoreError
from airflow_eos.kinds.sql.columns import (
    VERSION,
    TableDescription,
    bytea_text,
    refuse_columns,
    refuse_long_keys,
    refuse_nul,
    refuse_times,
)
from airflow_eos.kinds.sql.participant import ddl_published, ddl_refused
from airflow_eos.kinds.sql.servers import (
    FAILOVER,
    OF_SESSION,
    OF_TRANSACTION,
    attentive,
    published,
)
from airflow_eos.kinds.texts import refuse_texts
from airflow_eos.kinds.upsert.target import (
    LAST_ORDER,
    OURS,
    OWNER,
    TRYING,
    RowSchema,
    TableSession,
    TableTarget,
    TargetOwner,
    epoch_text,
    lacking,
    left_by,
    one_of_each_number,
    with_tombstones,
)

if TYPE_CHECKING:
    from airflow_eos.core.protocol.participant import Note

_ROWS = 10_000  # rows of a statement, as many as Spark gives a task at once
_BYTES = 32 * 1024 * 1024  # of a statement; the server refuses a gigabyte

# For one transaction: a pooler may give the next one another connection.
LOCKS = "SELECT set_config('lock_timeout', %s, true)"
IS_STANDBY = "SELECT pg_is_in_recovery()"
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
ENSURE_INSTANCE_ID = (
    "INSERT INTO airflow_eos_upserts (target, mark) VALUES (%s, %s) ON CONFLICT DO NOTHING"
)
# An epoch is greater than all former ones, also than those of rows that came from elsewhere.
# A clock is not used: set back, it would make new rows older than those that stand.
CLAIM = """
UPDATE airflow_eos_upserts SET (last_epoch, owner_epoch, owner_location, owner_checkpoint) = (
  SELECT epoch, epoch, %(at)s, %(checkpoint)s FROM (SELECT 1 + greatest(last_epoch, (
    SELECT max(substring(eos_version FROM '^[0-9]{{16}}'))::bigint FROM {rows})) AS epoch) AS next)
WHERE target = %(table)s AND owner_location IS NULL
"""
OWNER_KEPT = OWNER + " FOR SHARE"
"""The statement to read the owner, and keep it until this transaction has ended."""
NOTE = """
UPDATE airflow_eos_upserts SET (note_batch, note_attempt, note_decision) = (
  SELECT batch, attempt, decision FROM (VALUES
    (note_batch, note_attempt, note_decision), (%(batch)s, %(attempt)s, %(decision)s)
  ) AS noted (batch, attempt, decision)
  WHERE batch IS NOT NULL ORDER BY batch DESC, attempt DESC LIMIT 1)
WHERE target = %(table)s AND owner_checkpoint = %(checkpoint)s
RETURNING target
"""
LIFE = "SELECT extract(epoch FROM pg_postmaster_start_time())::text"
COUNT = """
UPDATE airflow_eos_upserts SET tally = tally + 1 WHERE target = %s AND tally >= %s RETURNING tally
"""
RESOLVED_NAME = """
SELECT c.oid, n.nspname, c.relname FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
RIGHTS = """
SELECT wanted FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE']) AS wanted
WHERE NOT has_table_privilege(%(oid)s, wanted)
"""
COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod),
       attnotnull AND NOT atthasdef AND attidentity = '',
       attgenerated <> '' OR attidentity <> ''
FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped
"""
# ON CONFLICT takes no deferrable index. A trigger's type: 4 is INSERT, 16 UPDATE.
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
UNION ALL SELECT 'is published without a replica identity (' || relname || '): no row of it can be '
       'replaced (ALTER TABLE … REPLICA IDENTITY USING INDEX …, or a primary key)'
FROM parts WHERE relkind = 'r' AND (relreplident = 'n' OR relreplident = 'd' AND NOT EXISTS
  (SELECT 1 FROM pg_index WHERE indrelid = parts.oid AND indisprimary))
AND EXISTS (SELECT 1 FROM pg_publication_tables JOIN pg_publication USING (pubname)
  JOIN parts AS part ON part.relname = tablename AND part.relnamespace::regnamespace::text
  = quote_ident(schemaname) WHERE pubupdate)
UNION ALL SELECT 'has row-level security, which could refuse a row (use a role with BYPASSRLS)'
WHERE row_security_active(%(oid)s)
"""
NOTHING = "UPDATE {} SET eos_version = eos_version WHERE false"
"""The statement that changes no row, and is refused where a publication lets none be replaced."""
# By their inner names, without lengths: a cast to varchar(9) cuts a text, and an insert refuses it.
TYPES = """
SELECT attname, format('%%I.%%I', nspname, typname) FROM pg_attribute
JOIN pg_type AS t ON t.oid = atttypid JOIN pg_namespace AS n ON n.oid = typnamespace
WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped
"""
INEXACT = """
SELECT a.attname FROM pg_attribute AS a JOIN pg_collation AS c ON c.oid = a.attcollation
WHERE a.attrelid = %s AND NOT c.collisdeterministic
"""
# Without included columns, which are not unique; with invalid indexes, which refuse rows, too.
KEYS = """
SELECT array_agg(a.attname::text) FILTER (WHERE i.indexprs IS NULL),
       i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
FROM pg_index AS i CROSS JOIN unnest(i.indkey) WITH ORDINALITY AS k (number, place)
LEFT JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.number
WHERE i.indrelid = %s AND i.indisunique AND k.place <= i.indnkeyatts
GROUP BY i.indexrelid
"""
# With included columns: an index entry holds them, too.
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
    """Quote a name, or ``schema.name``, for a statement."""
    return ".".join(map(_name, table.split(".")))


def upserted(table: str, names: Sequence[str], key: Sequence[str], types: Mapping[str, str]) -> str:
    """Return the statement that upserts rows; its arguments are the version, then the arrays."""
    given = [*(name for name in names if name not in key), VERSION]
    values = ", ".join(f"{_name(name)} = excluded.{_name(name)}" for name in given)
    target, columns, by, values = (
        text.replace("%", "%%") for text in (quoted(table), _list(names), _list(key), values)
    )
    return (
        f"INSERT INTO {target} AS t ({columns}, {VERSION}) "  # noqa: S608 - names in quotes
        f"SELECT {columns}, %s FROM {_rows(names, types)} "
        f"ON CONFLICT ({by}) DO UPDATE SET {values} WHERE t.{VERSION} IS NULL "
        f'OR t.{VERSION} COLLATE "C" <= excluded.{VERSION} COLLATE "C"'
    )


def outranking(table: str, key: Sequence[str], types: Mapping[str, str]) -> str:
    """Return the query for a row in the target whose epoch is above; arguments: keys, the epoch."""
    target, by = (text.replace("%", "%%") for text in (quoted(table), _list(key)))
    return (
        f"SELECT 1 FROM {target} JOIN {_rows(key, types)} USING ({by}) "  # noqa: S608 - in quotes
        f'WHERE left({VERSION}, 16) COLLATE "C" > %s LIMIT 1'
    )


def _rows(names: Sequence[str], types: Mapping[str, str]) -> str:
    """Return the rows of arrays, one of each column, as statements name them."""
    arrays = ", ".join(f"%s::{types[name]}[]" for name in names)
    return f"unnest({arrays}) AS eos_rows ({_list(names).replace('%', '%%')})"


def pieces(rows: pa.Table, about: RowSchema) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield how many rows, and the array of each column, for one statement after the other.

    In the order of the key: so tasks and committers of the same rows never deadlock. Deleted rows
    keep their key alone.
    """
    ordered = rows.sort_by([(name, "ascending") for name in about.key])
    columns = [_text(each) for each in with_tombstones(ordered, about).columns]
    text = pa.table(columns, names=rows.column_names)
    # By what each row has: long ones may stand together among many short ones.
    lengths = (pc.fill_null(pc.binary_length(each), 0).to_numpy() for each in text.columns)
    ends = np.concatenate([[0], np.cumsum(sum(lengths))])
    at = 0
    while at < text.num_rows:
        fit = int(np.searchsorted(ends, ends[at] + _BYTES, side="right")) - 1 - at
        some = text.slice(at, max(1, min(fit, _ROWS)))
        yield some.num_rows, {name: as_array(some[name]) for name in some.column_names}
        at += some.num_rows


def as_array(texts: pa.ChunkedArray) -> str:
    """Return texts as an array of PostgreSQL: each in quotes, a null as NULL."""
    whole = texts.cast(pa.large_string())
    for mark, instead in (("\\", "\\\\"), ('"', '\\"')):
        whole = pc.replace_substring(whole, mark, instead)
    quote, none = (pa.scalar(each, pa.large_string()) for each in ('"', ""))
    each = pc.fill_null(pc.binary_join_element_wise(quote, whole, quote, none), "NULL")
    one = each.combine_chunks()
    ends = pa.array([0, len(one)], pa.int64())
    joined = pc.binary_join(
        pa.LargeListArray.from_arrays(ends, one).cast(pa.list_(pa.string())), ","
    )
    return "{" + (joined[0].as_py() or "") + "}"


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        chunks = [bytea_text(chunk.cast(pa.large_binary())) for chunk in column.chunks]
        return pa.chunked_array(chunks, pa.large_string())
    if pa.types.is_floating(column.type):
        column = column.cast(pa.float64())  # the table's column may be wider, and hold more digits
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        # In UTC: the text of an offset lacks the seconds that some zones once had.
        column = column.cast(pa.timestamp("us", "UTC"))
    return column.cast(pa.large_string())


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(_name, names))


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


Ask = Callable[..., list[Any]]

_TRIES = 5  # where others lock the same rows; ours lock them in one order
_LOCKS_MS = 60_000  # for another committer of the same rows, which is at the same batch
_TRIAL_LOCKS_MS = 10_000  # for another task's trial, or a committer


class PostgresTable(TableSession):
    """The table of a target in its database; see :class:`TableSession`.

    Args:
        dsn: the database's connection string.
        table: the table's name as the user gave it.
        timeout_s: seconds to connect.
    """

    def __init__(self, dsn: str, table: str, *, timeout_s: float) -> None:
        try:
            import psycopg
        except ModuleNotFoundError as error:
            raise lacking("postgres", "psycopg") from error
        super().__init__(psycopg, timeout_s=timeout_s)
        self._dsn = dsn
        self._asked_for = table
        self._found: tuple[int, str, str] | None = None

    @contextlib.contextmanager
    def asking(self, doing: str) -> Iterator[Ask]:
        """Yield a function (statement, arguments) that returns all rows of the answer.

        Raises:
            DeliveryError: the server refused, or did not answer.
            ConfigurationError: the DSN cannot be read.
        """
        try:
            self._let_go_if_lost()
            if self.connected is None or self.connected.closed:
                self.connected = self.client.connect(
                    self._dsn,
                    autocommit=True,
                    application_name="airflow-eos",
                    client_encoding="utf8",
                    # A pooler may give each transaction another connection, without statements.
                    prepare_threshold=None,
                    **attentive(self._dsn, self._timeout_s),
                )
                self.connected.read_only = False
                self.connected.isolation_level = self.client.IsolationLevel.READ_COMMITTED
                self.connected.execute(OF_SESSION)
                self._require_primary()
            yield self._ask
        except self.client.ProgrammingError as error:
            if error.sqlstate is not None:
                raise self._meant(doing, error) from error
            raise ConfigurationError(
                "The DSN of PostgreSQL cannot be read: expected host=… dbname=… user=… password=…, "
                "with quotes around what has spaces, or postgresql://user:password@host/dbname, "
                "each part in percent-encoding."
            ) from None  # the cause quotes parts of the DSN
        except self.client.Error as error:
            raise self._meant(doing, error) from error

    @contextlib.contextmanager
    def writing(self, doing: str) -> Iterator[Ask]:
        """Yield the function of :meth:`asking`, in one transaction, durable when the block ends."""
        with self.asking(doing) as ask, self.connected.transaction():
            ask(OF_TRANSACTION)
            ask(LOCKS, (str(_TRIAL_LOCKS_MS if doing == TRYING else _LOCKS_MS),))
            yield ask

    def rows(self, doing: str, statement: str, *given: object) -> list[Any]:
        """See :meth:`TableSession.rows`."""
        with self.asking(doing) as ask:
            return ask(statement, given or None)

    def has_ours(self, doing: str) -> bool:
        """See :meth:`TableSession.has_ours`."""
        with self.asking(doing) as ask:
            return bool(ask(HAS_OURS, (self.schema,))[0][0])

    def _ping(self) -> None:
        self.connected.execute("SELECT 1")

    def _require_primary(self) -> None:
        """Refuse a standby (StoreError), which lags: its missing rows say nothing."""
        if self.connected.execute(IS_STANDBY).fetchone()[0]:
            self.close()
            raise StoreError(
                "This PostgreSQL is a standby, which nobody can write to: give the primary "
                "(target_session_attrs=read-write finds it).",
                FAILOVER,
            )

    def _meant(self, doing: str, error: Any) -> DeliveryError:
        # No detail: it holds values of rows. The first line of an error without parts has no DSN.
        said = error.diag.message_primary or str(error).partition("\n")[0]
        errors = self.client.errors
        if isinstance(error, (errors.ObjectNotInPrerequisiteState, errors.InvalidColumnReference)):
            said = f"{said}: {error.diag.message_detail or ''}".rstrip(": .")  # of the table alone
        hint = f" {error.diag.message_hint}" if error.diag.message_hint else ""
        return DeliveryError(
            f"PostgreSQL refused or did not answer while {doing} ({self._asked_for}): "
            f"{type(error).__name__}: {said}.{hint} {left_by(doing)}"
        )

    @property
    def oid(self) -> int:
        """The table's id in the database."""
        return self._resolved[0]

    @property
    def plain_schema(self) -> str:
        """The table's schema."""
        return self._resolved[1]

    @property
    def schema(self) -> str:
        """The table's schema, in quotes."""
        return quoted(self._resolved[1])

    @property
    def table(self) -> str:
        """The table's full name ``schema.name``, which no other spelling of it changes."""
        _, schema, name = self._resolved
        return f"{schema}.{name}"

    @property
    def types(self) -> dict[str, str]:
        """The type of each column, without its length."""
        return dict(self._ask(TYPES, (self.oid,)))

    @property
    def ours(self) -> str:
        """Our own table ``airflow_eos_upserts``, in the schema of the target's table."""
        return f"{self.schema}.{OURS}"

    def _ask(self, statement: str, given: Any = None) -> list[Any]:
        cursor = self.connected.execute(statement.replace(OURS, self.ours), given)
        return list(cursor.fetchall()) if cursor.description else []

    @property
    def _resolved(self) -> tuple[int, str, str]:
        """The table's id, schema and name, as the database resolves the user's name."""
        if self._found is None:
            with self.asking("looking for the table"):
                asked = quoted(self._asked_for)
                found = self.connected.execute(RESOLVED_NAME, (asked,)).fetchone()
            if found is None:
                raise ConfigurationError(
                    f"There is no table {self._asked_for!r} for this user: create it, with its key "
                    "as primary key and a column eos_version text."
                )
            self._found = found
        return self._found


_KEY_BYTES = 2600  # a third of a page, less the other parts of an entry of a B-tree


@dataclass(frozen=True)
class PostgresUpsert:
    """An upsert target: a table of one PostgreSQL database.

    Attributes:
        dsn: ``host=… dbname=… user=… password=…``, or a ``postgresql://`` URL.
        table: the table's name, or ``schema.name``, without quotes.
        indexes: the columns of each of its indexes; see :meth:`told`.
    """

    dsn: str = field(repr=False)
    table: str
    indexes: tuple[tuple[str, ...], ...] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        take_fields(self)
        parts = self.table.split(".")
        if len(parts) > 2 or not all(parts):
            raise ConfigurationError(f"table {self.table!r}: expected a name, or schema.name.")

    def refuse(self, columns: Mapping[str, str], key: tuple[str, ...], deleted: str | None) -> None:
        """Refuse columns that the table lacks, or could refuse once they are decided.

        Raises:
            ConfigurationError: with the columns, and what to do.
            DeliveryError: the database does not answer.
        """
        with closing(self.open(timeout_s=30.0)) as target:
            target.has_ours()
            refuse_columns(self.table, target.described(), columns, key, deleted)

    def with_limits(self) -> PostgresUpsert:
        """See :meth:`UpsertTarget.told`: add the table's indexes; its columns have no limits.

        Raises:
            DeliveryError: the database does not answer.
            ConfigurationError: there is no such table.
        """
        with closing(self.open(timeout_s=30.0)) as target:
            return replace(self, indexes=target.indexes())

    def refuse_rows(self, rows: pa.RecordBatch, key: Sequence[str]) -> None:
        """Refuse values that no column, or no index, of PostgreSQL can hold."""
        refuse_texts(rows, "PostgreSQL")
        refuse_nul(rows)
        refuse_times(rows, "a row in SQL")
        refuse_long_keys(rows, key, _KEY_BYTES)
        for columns in self.indexes:
            refuse_long_keys(rows, [n for n in columns if n in rows.schema.names], _KEY_BYTES)

    def open(self, *, timeout_s: float) -> PostgresTarget:
        """Return a connection to the target; nothing is connected yet."""
        return PostgresTarget(self.dsn, self.table, timeout_s=timeout_s)


class PostgresTarget(TableTarget):
    """See :class:`~airflow_eos.kinds.upsert.target.UpsertConnection`."""

    system = ("postgres", "PostgreSQL")
    _session: PostgresTable

    def __init__(self, dsn: str, table: str, *, timeout_s: float) -> None:
        self._session = PostgresTable(dsn, table, timeout_s=timeout_s)

    def check(self) -> None:
        """Refuse a standby, and create our own table where it is missing (ConfigurationError)."""
        if self.has_ours():
            return
        client, ours = self._session.client, self._session.ours
        with self._session.asking("looking at the server") as ask:
            try:
                ask(CREATE_OURS)
            except client.errors.UniqueViolation:
                pass  # two sessions create it at once, in spite of IF NOT EXISTS
            except client.OperationalError:
                raise
            except client.Error as error:  # a right, or an event trigger, which has any code
                said = f"{error.diag.message_primary} ({error.sqlstate})"
                refused = f"The table {ours} cannot be made: {said}."
                raise ddl_refused(refused, self._by_hand) from error

    def has_ours(self) -> bool:
        """Whether our table is there; refuse to make it where a subscriber would miss it."""
        with self._session.asking("looking at the server"):
            there = self._session.has_ours("looking at the server")
            connection, schema = self._session.connected, self._session.plain_schema
            if not there and (names := published(connection, schema)):
                raise ddl_published(names, self._by_hand)
        return there

    @property
    def _by_hand(self) -> str:
        ours = self._session.ours
        made = CREATE_OURS.replace(OURS, ours).strip()
        return f"{made};\nGRANT SELECT, INSERT, UPDATE ON {ours} TO the role."

    def described(self) -> TableDescription:
        """Return the database's description of the table (ConfigurationError: there is none)."""
        with self._session.asking("looking at the table") as ask:
            found = self._session.oid
            indexes = [(set(names or ()), is_key) for names, is_key in ask(KEYS, (found,))]
            return TableDescription(
                columns={name: tuple(rest) for name, *rest in ask(COLUMNS, (found,))},
                keys=[names for names, is_key in indexes if is_key],
                uniques=[names for names, _ in indexes],
                constraints=[name for (name,) in ask(CONSTRAINTS, (found,))],
                lacking=[right for (right,) in ask(RIGHTS, {"oid": found})],
                unfit=[*(what for (what,) in ask(PARTS, {"oid": found})), *self._not_updated()],
                inexact=frozenset(name for (name,) in ask(INEXACT, (found,))),
                encoding=ask(ENCODING)[0][0],
            )

    def _not_updated(self) -> list[str]:
        """Return why no row can be replaced, as for a publication's row filter; else nothing."""
        errors = self._session.client.errors
        try:
            self._session.connected.execute(NOTHING.format(quoted(self._session.table)))
        except (errors.ObjectNotInPrerequisiteState, errors.InvalidColumnReference) as error:
            more = " ".join(filter(None, (error.diag.message_detail, error.diag.message_hint)))
            return [f"refuses to replace a row: {error.diag.message_primary} ({more})"]
        except (errors.InsufficientPrivilege, errors.UndefinedColumn):
            pass  # told with the rights, and with the columns
        return []

    def indexes(self) -> tuple[tuple[str, ...], ...]:
        """Return the columns of each index whose entries are limited in length."""
        with self._session.asking("looking at the table") as ask:
            return tuple(tuple(c) for (c,) in ask(INDEXES, {"oid": self._session.oid}))

    def ensure_instance_id(self) -> str:
        """See :meth:`UpsertConnection.ensure_instance_id`."""
        with self._session.writing("marking the target") as ask:
            ask(ENSURE_INSTANCE_ID, (self._session.table, uuid.uuid4().hex))
        return self.instance_id() or ""

    def claim(self, location: str, checkpoint: str) -> None:
        """See :meth:`UpsertConnection.claim`."""
        with self._session.writing("claiming the target") as ask:
            claim = CLAIM.format(rows=quoted(self._session.table).replace("%", "%%"))
            ask(claim, {"table": self._session.table, "at": location, "checkpoint": checkpoint})

    def note(self, note: Note, checkpoint: str) -> None:
        """See :meth:`UpsertConnection.note`."""
        with self._session.writing("noting a decision") as ask:
            noted = ask(
                NOTE,
                {
                    "table": self._session.table,
                    "checkpoint": checkpoint,
                    "batch": note.batch,
                    "attempt": note.attempt,
                    "decision": note.decision,
                },
            )
        if not noted:
            raise self.not_ours(self.owner())

    def life(self) -> str:
        """See :meth:`UpsertConnection.life`: the microsecond of the server's start."""
        return str(self._session.rows("asking which server it is", LIFE)[0][0])

    def count(self, known: int) -> int | None:
        """See :meth:`UpsertConnection.count`."""
        with self._session.writing("counting what was written") as ask:
            found = ask(COUNT, (self._session.table, known))
        return int(found[0][0]) if found else None

    def apply(self, rows: pa.Table, about: RowSchema, checkpoint: str, order: str) -> int:
        """See :meth:`UpsertConnection.apply`."""
        return self._unless_locked(partial(self._apply, rows, about, checkpoint, order))

    def tried(self, rows: pa.Table, about: RowSchema) -> None:
        """See :meth:`UpsertConnection.tried`."""
        self._unless_locked(partial(self._try, rows, about))

    def _apply(self, rows: pa.Table, about: RowSchema, checkpoint: str, order: str) -> int:
        rows = one_of_each_number(rows, about.key)
        with self._session.writing("writing rows") as ask:
            written = self._statement(rows.column_names, about)
            owner = ask(OWNER_KEPT, (self._session.table,))
            if not owner or owner[0][1] != checkpoint:
                raise self.not_ours(TargetOwner(*owner[0]) if owner else None)
            epoch, older = epoch_text(owner[0][2]), 0
            for count, arrays in pieces(rows, about):
                older += count - self._write(written, epoch + order, arrays)
            if older and self._is_outranked(rows, about, epoch):
                raise self.outranked()
        return older

    def _try(self, rows: pa.Table, about: RowSchema) -> int:
        rows = one_of_each_number(rows, about.key)
        with self._session.writing(TRYING) as ask:
            written = self._statement(rows.column_names, about)
            owner = ask(OWNER, (self._session.table,))
            if not owner:
                raise self.not_ours(None)
            version = epoch_text(owner[0][2]) + LAST_ORDER
            for count, arrays in pieces(rows, about):
                if self._write(written, version, arrays) < count:  # no version of ours is as great
                    raise self.outranked()
            # A publication may take new rows, and refuse to replace one: a row that stands now is.
            for _, arrays in pieces(rows.slice(0, 1), about):
                self._write(written, version, arrays)
            raise self._session.client.Rollback
        return 0  # type: ignore[unreachable]  # Rollback ends the transaction, and no more

    def _unless_locked(self, step: Callable[[], int]) -> int:
        """Return what ``step`` returns, done again after a deadlock, or a lock that it waits for.

        Of a transaction that ends so nothing is left.
        """
        errors = self._session.client.errors
        for _ in range(_TRIES - 1):
            try:
                return step()
            except DeliveryError as error:
                if not isinstance(
                    error.__cause__, (errors.DeadlockDetected, errors.LockNotAvailable)
                ):
                    raise
        return step()

    def _statement(self, names: Sequence[str], about: RowSchema) -> str:
        return upserted(self._session.table, names, about.key, self._session.types)

    def _write(self, statement: str, version: str, arrays: Mapping[str, str]) -> int:
        """Run the statement of a piece; return how many rows it wrote."""
        return int(self._session.connected.execute(statement, (version, *arrays.values())).rowcount)

    def _is_outranked(self, rows: pa.Table, about: RowSchema, epoch: str) -> bool:
        asked = outranking(self._session.table, about.key, self._session.types)
        keys = rows.select(list(about.key))
        return any(
            self._session.connected.execute(asked, (*arrays.values(), epoch)).fetchone()
            for _, arrays in pieces(keys, RowSchema(about.key))
        )
