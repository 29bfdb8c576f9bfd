"""The hashes of rows that the JVM never sees are those that it would have made."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from airflow_eos.arrow.records import kernels as loops
from airflow_eos.arrow.source.columns import prepared_by
from airflow_eos.core.delivery.task import HASH_COLUMN, columns_number, with_row_hashes
from airflow_eos.kafka.columns import HEADER
from airflow_eos.sinks import KafkaSink

SCHEMA = (
    "key binary, value string, topic string, partition int, timestamp timestamp, "
    "headers array<struct<key:string,value:binary>>"
)


def _kafka_rows(chance: random.Random) -> list[tuple[Any, ...]]:
    def maybe(make: Any) -> Any:
        return None if chance.random() < 0.2 else make()

    def content(most: int) -> bytes:
        return chance.randbytes(chance.randrange(most))

    return [
        (
            maybe(lambda: content(120)),
            maybe(lambda: "ä" * chance.randrange(40) + "x" * chance.randrange(9)),
            maybe(lambda: chance.choice(["one", "two"])),
            maybe(lambda: chance.randrange(12)),
            maybe(lambda: chance.randrange(1 << 40) / 1e6),
            maybe(
                lambda: [
                    {"key": "h" * chance.randrange(4), "value": maybe(lambda: content(40))}
                    for _ in range(chance.randrange(4))
                ]
            ),
        )
        for _ in range(500)
    ]


@pytest.fixture(params=["numpy", "compiled"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    loops.warm(wait=True)
    assert loops._loaded
    if request.param == "numpy":
        monkeypatch.setattr(loops, "_loaded", [])


@pytest.mark.long
@pytest.mark.usefixtures("way")
def test_a_kafka_sinks_rows_are_what_spark_makes_of_them(spark: SparkSession) -> None:
    given = spark.createDataFrame(_kafka_rows(random.Random(7)), _as_made()).select(
        "key",
        "value",
        "topic",
        "partition",
        F.timestamp_micros((F.col("timestamp") * 1e6).cast("bigint")).alias("timestamp"),
        "headers",
    )
    sink = KafkaSink("none:1", topic="other", transactional_id_prefix="p")
    columns = sink.columns(given.schema)
    (rows,) = given.toArrow().combine_chunks().to_batches()
    rows = rows.cast(pa.schema([_typed(field) for field in rows.schema]))
    prepared = prepared_by(columns, rows.schema)
    assert prepared is not None
    spark_says = with_row_hashes(given.selectExpr(*columns), fixed=True).toArrow().to_pylist()
    assert [row[HASH_COLUMN] for row in prepared(rows).to_pylist()] == [
        row[HASH_COLUMN] for row in spark_says
    ]
    for column in ("topic", "headers"):
        assert prepared(rows).column(column).to_pylist() == [row[column] for row in spark_says]


@pytest.mark.usefixtures("way")
def test_plain_columns_of_every_kind_are_hashed_as_spark_hashes_them(spark: SparkSession) -> None:
    given = spark.range(200).selectExpr(
        "id % 3 = 0 AS a",
        "cast(id - 100 AS tinyint) AS b",
        "cast(id * -7 AS smallint) AS c",
        "cast(id * 1000003 AS int) AS d",
        "(id - 5) * 1000000000007 AS e",
        "date_add(date'2026-01-01', cast(id AS int)) AS f",
        "timestamp_ntz'2026-01-01 00:00:00.123456' + make_interval(0,0,0,0,0,0,id) AS g",
        "if(id % 5 = 0, null, repeat('z', cast(id AS int))) AS h",
    )
    (rows,) = given.toArrow().combine_chunks().to_batches()
    rows = rows.cast(pa.schema([_typed(field) for field in rows.schema]))
    columns = [f"`{name}` AS `{name}`" for name in given.columns]
    prepared = prepared_by(columns, rows.schema, columns_number(given.schema))
    assert prepared is not None
    spark_says = with_row_hashes(given).toArrow().column(HASH_COLUMN).to_pylist()
    assert prepared(rows).column(HASH_COLUMN).to_pylist() == spark_says


def test_what_only_spark_knows_is_left_to_spark() -> None:
    schema = pa.schema([("a", pa.float64()), ("b", pa.binary()), ("c", pa.list_(HEADER))])
    assert prepared_by(["`a` AS `a`"], schema) is None
    assert prepared_by(["upper(`b`) AS `b`"], schema) is None
    assert prepared_by(["`c` AS `c`"], schema, 7) is None
    assert prepared_by(["`c` AS `c`"], schema) is not None
    assert prepared_by(["`b` AS `b`"], schema) is not None


def _as_made() -> str:
    return SCHEMA.replace("timestamp timestamp", "timestamp double")


def _typed(field: Any) -> Any:
    """As our decoder has it: 32-bit offsets, UTC."""
    if pa.types.is_timestamp(field.type) and field.type.tz:
        return pa.field(field.name, pa.timestamp("us", tz="UTC"))
    if pa.types.is_list(field.type):
        return pa.field(
            field.name, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        )
    return field
