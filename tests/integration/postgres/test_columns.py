"""Values arrive as they are, whatever is in them; columns that would change them are refused."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from airflow_eos.errors import ConfigurationError, DeliveryError
from airflow_eos.kinds.postgres.sink import PostgresColumn, as_csv, fits
from tests.integration.postgres.conftest import World

UTC = dt.UTC
TEXTS = [
    "",
    "NULL",
    "\\N",
    "\\.",
    "a,b",
    'say "x"',
    "two\nlines",
    "cr\rlf\r\n",
    " é😀\t",
    "\n\\.\n",
]
VALUES: list[tuple[str, pa.DataType, list[Any]]] = [
    ("text", pa.string(), TEXTS),
    ("text", pa.large_string(), TEXTS),
    ("bool", pa.bool_(), [True, False]),
    ("int2", pa.int16(), [-(2**15), 2**15 - 1]),
    ("int4", pa.int32(), [-(2**31), 2**31 - 1]),
    ("int8", pa.int64(), [-(2**63), 0, 2**63 - 1]),
    ("float4", pa.float32(), [0.1, -0.0, 3.4e38, 1e-45]),
    ("float8", pa.float64(), [0.1, 1 / 3, 5e-324, 1.7976931348623157e308, math.inf, -math.inf]),
    ("numeric(38,10)", pa.decimal128(38, 10), [decimal.Decimal("-1234567890.0123456789")]),
    ("bytea", pa.binary(), [b"", b"\x00\xff\\x41", bytes(range(256))]),
    ("date", pa.date32(), [dt.date(1, 1, 1), dt.date(2026, 11, 22)]),
    (
        "timestamptz",
        pa.timestamp("us", "America/New_York"),
        [dt.datetime(2026, 11, 1, 5, 30, 0, 1, tzinfo=UTC)],
    ),
    ("timestamp", pa.timestamp("us"), [dt.datetime(1969, 12, 31, 23, 59, 59, 999999)]),  # noqa: DTZ001
]


@pytest.mark.parametrize(("column", "type_", "values"), VALUES, ids=lambda each: str(each)[:20])
def test_each_value_and_null_arrives_as_it_is(server, column: str, type_: pa.DataType, values):
    """Alone in its table too, where the line of a null is empty; and from the middle of a batch."""
    world = World(server, two_phase=False, columns=f"v {column}")
    world.participant()
    given = [None, *values, None]
    rows = pa.RecordBatch.from_pydict({"v": pa.array([*given, *given], type_)})
    writer = world.sink.opened(0, 0, transactional=False)
    writer.write(rows.slice(len(given)))
    writer.prepare("0" * 32)
    found = [value for (value,) in world.sql(f"SELECT v FROM {world.tag} ORDER BY ctid")]
    if type_ == pa.float32():
        found = [None if v is None else pa.scalar(v, type_).as_py() for v in found]
        given = pa.array(given, type_).to_pylist()
    assert found == given


def test_a_number_that_is_none_is_one_all_the_same(server):
    world = World(server, columns="v float8")
    world.participant()
    writer = world.sink.opened(0, 0, transactional=False)
    writer.write(pa.RecordBatch.from_pydict({"v": [math.nan]}))
    writer.prepare("0" * 32)
    assert world.sql(f"SELECT v = 'NaN' FROM {world.tag}") == [(True,)]


@pytest.fixture
def types(server) -> None:
    for made in ("TYPE mood AS ENUM (''ok'')", "DOMAIN mytext AS varchar(9)"):
        World(server).sql(f"DO 'BEGIN CREATE {made}; EXCEPTION WHEN duplicate_object THEN END'")


def test_a_string_becomes_what_the_column_is(server, types):
    world = World(server, columns="id uuid, doc jsonb, kind mood")
    world.participant()
    writer = world.sink.opened(0, 0, transactional=False)
    uuid = "0f8fad5b-d9cb-469f-a165-70867728950e"
    writer.write(pa.RecordBatch.from_pydict({"id": [uuid], "doc": ['{"a": 1}'], "kind": ["ok"]}))
    writer.prepare("0" * 32)
    found = world.sql(f"SELECT id::text, doc->>'a', kind::text FROM {world.tag}")
    assert found == [(uuid, "1", "ok")]


def test_columns_in_another_order_and_defaults_arrive(server):
    for two_phase in (True, False):
        world = World(
            server,
            two_phase,
            columns="id bigint, n serial NOT NULL, note text DEFAULT 'x', name text",
        )
        pg, work = world.participant(), world.prepare(7)
        pg.commit([work])
        assert world.sql(f"SELECT id, n, note, name FROM {world.tag}") == [(7, 1, "x", "row 7")]


def test_rows_and_nulls_of_any_number_are_one_text():
    rows = pa.RecordBatch.from_pydict({"a": [1, None], "b": ["", None]})
    assert bytes(as_csv(rows)) == b'1,""\n,\n'
    assert bytes(as_csv(rows.slice(0, 0))) == b""


@pytest.mark.parametrize(
    ("spark", "column", "expected"),
    [
        ("int", PostgresColumn("c", "int8"), True),
        ("bigint", PostgresColumn("c", "int4"), False),
        ("double", PostgresColumn("c", "float4"), False),
        ("string", PostgresColumn("c", "int4"), False),
        ("string", PostgresColumn("c", "mood", is_enum=True), True),
        ("decimal(10,2)", PostgresColumn("c", "numeric"), True),
        ("decimal(10,2)", PostgresColumn("c", "numeric", ((10 << 16) | 2) + 4), True),
        ("decimal(10,3)", PostgresColumn("c", "numeric", ((10 << 16) | 2) + 4), False),
        ("decimal(11,2)", PostgresColumn("c", "numeric", ((10 << 16) | 2) + 4), False),
        ("timestamp", PostgresColumn("c", "timestamptz", 6), True),
        ("timestamp", PostgresColumn("c", "timestamptz", 0), False),
        ("timestamp", PostgresColumn("c", "timestamp"), False),
        ("array<int>", PostgresColumn("c", "_int4"), False),
        ("void", PostgresColumn("c", "text"), False),
    ],
)
def test_only_a_column_that_keeps_each_value_fits(
    spark: str, column: PostgresColumn, expected: bool
):
    assert fits(spark, column) is expected


TYPES: dict[str, DataType] = {
    "bigint": LongType(),
    "int": IntegerType(),
    "string": StringType(),
    "array<string>": ArrayType(StringType()),
    "decimal(12,4)": DecimalType(12, 4),
}


def struct(*columns: str) -> StructType:
    """Of ``name:type`` each; Spark's own parser would need a Spark that runs."""
    named = (column.rpartition(":") for column in columns)
    return StructType([StructField(name, TYPES[spark]) for name, _, spark in named])


@pytest.mark.parametrize(
    ("columns", "schema", "why"),
    [
        ("id bigint", ["id:bigint", "extra:string"], "has no column 'extra'"),
        ('id bigint, "Name" text', ["id:bigint", "name:string"], "capitals count"),
        ("id int", ["id:bigint"], "type bigint, and of type int4 .* cast it"),
        ("id bigint, tags jsonb", ["id:bigint", "tags:array<string>"], r"to_json\(tags\)"),
        ("id numeric(10,2)", ["id:decimal(12,4)"], r"numeric\(10,2\).*without being rounded"),
        ("id bigint, must text NOT NULL", ["id:bigint"], "needs must"),
        ("id bigint GENERATED ALWAYS AS IDENTITY", ["id:bigint"], "GENERATED ALWAYS AS IDENTITY"),
        ("a int, id int GENERATED ALWAYS AS (a) STORED", ["id:int"], "is generated"),
        ("id bigint", ["id:bigint", "id:bigint"], "each name once"),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_name(
    server, columns: str, schema: list[str], why: str
):
    world = World(server, columns=columns)
    with pytest.raises(ConfigurationError, match=why):
        world.sink.columns(struct(*schema))


def test_rows_that_fit_are_selected_by_name(server, types):
    world = World(server, columns='"odd name" text, d mytext')
    sink = replace(world.sink, table=f"public.{world.tag}")
    schema = struct("odd name:string", "d:string")
    assert sink.columns(schema, "`s`.") == ["`s`.`odd name` AS `odd name`", "`s`.`d` AS `d`"]
    assert sink.quoted_table == f"public.{world.tag}"


@pytest.mark.parametrize("two_phase", [True, False], ids=["two-phase", "staged"])
def test_a_text_longer_by_spaces_alone_is_refused_and_none_is_cut_in_silence(server, two_phase):
    world = World(server, two_phase=two_phase, columns="id bigint, name varchar(3)")
    world.participant().close()
    writer = world.sink.opened(0, 0)
    fits = {"id": pa.array([1], pa.int64()), "name": ["é  "]}
    writer.write(pa.RecordBatch.from_pydict(fits))
    with pytest.raises(DeliveryError, match=r"column name has 4 characters: longer than the table"):
        writer.write(pa.RecordBatch.from_pydict({**fits, "name": ["abc "]}))
    writer.abort()


def test_a_float_is_the_same_number_in_a_wider_column(server):
    world = World(server, columns="r real, d float8")
    tenth = pa.array([0.1], pa.float32())
    pg, writer = world.participant(), world.sink.opened(0, 0)
    writer.write(pa.RecordBatch.from_pydict({"r": tenth, "d": tenth}))
    pg.commit([writer.prepare("0" * 32)])
    same = world.sql(f"SELECT r = 0.1::real, d = 0.1::real::float8 FROM {world.tag}")
    assert same == [(True, True)]
