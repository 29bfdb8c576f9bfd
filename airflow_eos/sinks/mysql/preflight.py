"""What a table must be, asked before the first row; and what a task looks for in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_eos.errors import ConfigurationError, DeliveryError, Remedy
from airflow_eos.participants.mysql.session import Connection, asked, done, quoted
from airflow_eos.participants.sql.staged import key_is_there
from airflow_eos.participants.upsert.mysql_statements import fits

_ENGINE = """
SELECT table_type, coalesce(engine, '') FROM information_schema.tables
WHERE table_schema = database() AND table_name = %s
"""
_COLUMNS = """
SELECT column_name, lower(column_type),
       is_nullable = 'NO' AND column_default IS NULL AND extra NOT LIKE '%%auto_increment%%',
       generation_expression IS NOT NULL AND generation_expression <> ''
FROM information_schema.columns WHERE table_schema = database() AND table_name = %s
ORDER BY ordinal_position
"""
_NEVER_NULL = """
SELECT column_name FROM information_schema.columns
WHERE table_schema = database() AND table_name = %s AND is_nullable = 'NO'
"""
# A row for each column: joined, they would be parted by what the session takes for an escape.
_KEYS = """
SELECT index_name, coalesce(column_name, 'an expression'),
       column_name IS NOT NULL AND sub_part IS NULL
FROM information_schema.statistics
WHERE table_schema = database() AND table_name = %s AND non_unique = 0
ORDER BY index_name, seq_in_index
"""
_FOREIGN = """
SELECT constraint_name FROM information_schema.table_constraints
WHERE table_schema = database() AND table_name = %s AND constraint_type = 'FOREIGN KEY'
"""
_TRIGGERS = """
SELECT trigger_name FROM information_schema.triggers WHERE event_object_schema = database()
AND event_object_table = %s AND event_manipulation = 'INSERT'
"""
# What the table would number next, and the last number that its column holds.
_NUMBERS = """
SELECT column_name, auto_increment, lower(column_type), @@auto_increment_increment
FROM information_schema.columns JOIN information_schema.tables USING (table_schema, table_name)
WHERE table_schema = database() AND table_name = %s AND extra LIKE '%%auto_increment%%'
"""
_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_TEXTS = ("json", "longtext", "mediumtext", "text", "tinytext")


@dataclass(frozen=True)
class Column:
    """A column of the table: its type, whether a row must give a value, whether it is made."""

    type: str
    is_required: bool
    is_made: bool


def columns_of(connection: Connection, table: str) -> dict[str, Column]:
    """The columns of ``table``; none where there is no such table."""
    return {
        name: Column(kind, bool(required), bool(made))
        for name, kind, required, made in asked(connection, _COLUMNS, table)
    }


def never_null(connection: Connection, table: str) -> frozenset[str]:
    """The columns that hold no null: AUTO_INCREMENT, or a time, makes a value of its own of one."""
    return frozenset(name for (name,) in asked(connection, _NEVER_NULL, table))


def check_columns(types: Mapping[str, str], columns: Mapping[str, Column], table: str) -> None:
    """Refuse rows that the table could not take as they are.

    Args:
        types: of the rows, name to Spark's simple name of the type.
        columns: of the table.
        table: for people.

    Raises:
        ConfigurationError: all that is wrong, and what to do.
    """
    wrong = []
    for name, spark in types.items():
        column = columns.get(name)
        if column is None:
            wrong.append(f"has no column {name!r} (found: {', '.join(columns)}; capitals count)")
        elif column.is_made:
            wrong.append(f"generates {name!r} itself: drop it from the rows")
        elif not _fits(spark, column.type):
            wrong.append(
                f"has {name!r} as {column.type}, which does not hold every {spark}: cast it, or "
                "change the table (text for what is nested: to_json)"
            )
    wrong += [
        f"needs {name!r}, which the rows do not have (NOT NULL without a default)"
        for name, column in columns.items()
        if column.is_required and name not in types and not column.is_made
    ]
    if wrong:
        raise ConfigurationError(f"Table {table} {'; '.join(wrong)}.")


def _fits(spark: str, kind: str) -> bool:
    """Also what the staging table refuses by itself, before the decision."""
    if spark == "string":
        return fits(spark, kind) or kind.startswith(_TEXTS)
    if spark.startswith("timestamp"):
        return fits(spark, kind) or (spark == "timestamp" and kind == "timestamp(6)")
    return fits(spark, kind)


def require_table(connection: Connection, table: str, probe: str) -> None:
    """Refuse a table that cannot keep what is promised of it (ConfigurationError).

    Args:
        connection: to its database.
        table: as the user named it.
        probe: a name for a table that is made and dropped: whether the user may.
    """
    found = asked(connection, _ENGINE, table)
    if not found:
        raise ConfigurationError(
            f"There is no table {table!r} in this database, or its user cannot see it. Create it "
            "first; the sink creates no tables of yours."
        )
    kind, engine = found[0]
    if kind != "BASE TABLE" or engine != "InnoDB":
        raise ConfigurationError(
            f"{table!r} is {kind if kind != 'BASE TABLE' else engine}: rows can be moved together "
            f"with their witness into InnoDB's tables alone. ALTER TABLE {table} ENGINE = InnoDB."
        )
    done(connection, f"EXPLAIN INSERT INTO {quoted(table)} VALUES ()")  # noqa: S608 - in quotes
    done(connection, f"CREATE TABLE {quoted(probe)} LIKE {quoted(table)}")
    done(connection, f"DROP TABLE {quoted(probe)}")


def may_refuse(connection: Connection, table: str) -> list[str]:
    """What of the table could refuse rows of two tasks that each could have."""
    return [
        *(f"UNIQUE ({', '.join(key)})" for key, _ in _keys(connection, table)),
        *(f"FOREIGN KEY {name}" for (name,) in asked(connection, _FOREIGN, table)),
        *(f"TRIGGER {name}" for (name,) in asked(connection, _TRIGGERS, table)),
    ]


def require_taken(
    connection: Connection, holding: str, table: str, names: Sequence[str], rows: int
) -> None:
    """Refuse rows that their table would refuse once they are decided.

    The staging table is ``LIKE`` it, and has refused what its columns, indexes, checks and
    partitions do. A key of a row that is there is looked for; for foreign keys, triggers, and
    keys that cannot be looked for, the rows are inserted into the table, and that is rolled back.
    Only then does the trial take numbers of AUTO_INCREMENT, which no rollback gives back.

    Raises:
        DeliveryError: what the table would not take.
        pymysql.MySQLError: why it refuses one.
    """
    numbers = asked(connection, _NUMBERS, table)
    made = {name for name, *_ in numbers} - set(names)
    unseen = [*asked(connection, _FOREIGN, table), *asked(connection, _TRIGGERS, table)]
    for key, is_whole in _keys(connection, table):
        if is_whole and set(key) <= set(names):
            _require_new_key(connection, holding, table, key)
        elif not made & set(key):
            unseen.append((key,))
    if unseen:
        _try(connection, holding, table, names, rows)
        numbers = asked(connection, _NUMBERS, table)
    for name, following, kind, step in numbers:
        if name in made and (following or 0) + rows * step > _last(kind):
            raise DeliveryError(
                f"Table {table} numbers its rows by {name} {kind}, next {following}, and {rows} "
                "more would not all have a number. Nothing was made visible.",
                Remedy(change=f"make {name} of table {table} a bigint", start=True),
            )


def _try(connection: Connection, holding: str, table: str, names: Sequence[str], rows: int) -> None:
    columns = quoted(*names)
    done(connection, "SAVEPOINT trial")
    taken = done(
        connection,
        f"INSERT INTO {quoted(table)} ({columns}) "  # noqa: S608 - names in quotes
        f"SELECT {columns} FROM {quoted(holding)}",
    )
    if taken != rows:
        raise DeliveryError(
            f"{rows} rows were sent to table {table}, which took {taken}. Nothing was made "
            "visible.",
            Remedy(change="drop the trigger that drops rows", start=True),
        )
    done(connection, "ROLLBACK TO SAVEPOINT trial")


def _last(kind: str) -> float:
    """The last number of a column; the server's last but one is ours: it stays where it ends."""
    bits = _BITS.get(kind.partition("(")[0].partition(" ")[0])
    return float("inf") if bits is None else 2 ** (bits - ("unsigned" not in kind)) - 1


def _require_new_key(connection: Connection, holding: str, table: str, key: Sequence[str]) -> None:
    equal = " AND ".join(f"held.{quoted(name)} = there.{quoted(name)}" for name in key)
    if asked(
        connection,
        f"SELECT 1 FROM {quoted(holding)} AS held "  # noqa: S608 - names in quotes
        f"JOIN {quoted(table)} AS there ON {equal} LIMIT 1",
    ):
        raise key_is_there(table, ", ".join(key))


def _keys(connection: Connection, table: str) -> list[tuple[list[str], bool]]:
    """The columns of each unique key, and whether it is of just them."""
    keys: dict[str, list[tuple[str, bool]]] = {}
    for key, column, is_whole in asked(connection, _KEYS, table):
        keys.setdefault(key, []).append((column, bool(is_whole)))
    return [
        ([column for column, _ in columns], all(is_whole for _, is_whole in columns))
        for columns in keys.values()
    ]
