"""Rows that Kafka cannot take are refused when the query is planned, by name."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from airflow_eos.core.delivery.outputs import OneSink, Outputs
from airflow_eos.core.delivery.task import HASH_COLUMN, own_columns, with_row_hashes
from airflow_eos.errors import ConfigurationError
from airflow_eos.kafka.sink import kafka_columns
from airflow_eos.sinks import FileSink, Output


def frame(spark: SparkSession, **columns: str) -> DataFrame:
    return spark.range(2).select(*[F.expr(sql).alias(name) for name, sql in columns.items()])


def kafka_rows(frame: DataFrame, *, default_topic: str | None) -> DataFrame:
    return frame.selectExpr(*kafka_columns(frame.schema, "", default_topic=default_topic))


@pytest.mark.parametrize(
    ("columns", "topic", "message"),
    [
        ({"key": "'k'"}, "t", "no column 'value'"),
        ({"value": "id"}, "t", "'value' is of type bigint; expected string or binary"),
        ({"value": "'v'", "partition": "'0'"}, "t", "'partition' is of type string; expected int"),
        ({"value": "'v'", "headers": "'h'"}, "t", "'headers' is of type string"),
        ({"value": "'v'", "user": "'u'"}, "t", "column 'user' that Kafka has no place for"),
        ({"value": "'v'"}, None, "No topic"),
    ],
)
def test_rows_that_cannot_be_sent_are_refused(spark, columns, topic, message):
    with pytest.raises(ConfigurationError, match=message):
        kafka_rows(frame(spark, **columns), default_topic=topic)


def test_rows_are_written_as_they_are_hashed(spark):
    rows = kafka_rows(
        frame(
            spark,
            value="'v'",
            topic="cast(null as string)",
            headers="cast(null as array<struct<key:string,value:binary>>)",
            timestamp="timestamp'2026-01-01 00:00:00.123456'",
        ),
        default_topic="t",
    ).first()
    assert rows is not None
    assert rows.topic == "t"
    assert rows.headers == []
    assert rows.timestamp.microsecond == 123000


def test_a_null_moved_to_another_column_is_another_row(spark):
    left = with_row_hashes(frame(spark, key="cast(null as string)", value="'a'")).first()
    right = with_row_hashes(frame(spark, key="'a'", value="cast(null as string)")).first()
    assert left is not None
    assert right is not None
    assert left[HASH_COLUMN] != right[HASH_COLUMN]


OTHER_ROWS = {
    "a column has another name": ("1 AS a, 2 AS b", "1 AS a, 2 AS c"),
    "cents are called euros": (
        "cast(125 AS decimal(10,0)) AS a",
        "cast(1.25 AS decimal(10,2)) AS a",
    ),
    "a number is called an instant": ("cast(7 AS bigint) AS a", "timestamp_micros(7) AS a"),
    "a local time is called an instant": (
        "timestamp_ntz'2026-01-01 10:00:00' AS a",
        "timestamp'2026-01-01 10:00:00Z' AS a",
    ),
    "a null inside of an array": ("array(1, null, 2) AS a", "array(1, 2) AS a"),
    "a null at another place of an array": ("array(null, 1) AS a", "array(1, null) AS a"),
    "arrays inside of an array cut elsewhere": (
        "array(array(1, 2), array(3)) AS a",
        "array(array(1), array(2, 3)) AS a",
    ),
    "a null in another field": (
        "named_struct('x', cast(null AS int), 'y', 1) AS a",
        "named_struct('x', 1, 'y', cast(null AS int)) AS a",
    ),
    "a struct of nulls and no struct": (
        "named_struct('x', cast(null AS int)) AS a",
        "if(true, null, named_struct('x', 1)) AS a",
    ),
    "a null in a struct of an array": (
        "array(named_struct('x', cast(null AS int), 'y', 1)) AS a",
        "array(named_struct('x', 1, 'y', cast(null AS int))) AS a",
    ),
    "a text that its collation takes for another": (
        "collate('a', 'UTF8_LCASE') AS a",
        "collate('A', 'UTF8_LCASE') AS a",
    ),
}


@pytest.mark.parametrize("hazard", OTHER_ROWS)
def test_rows_that_differ_have_other_fingerprints(spark, hazard):
    """Spark's hash knows no names or types, and passes over what is null inside of a column."""
    sink = FileSink("/nowhere")
    hashes = set()
    for columns in OTHER_ROWS[hazard]:
        rows = spark.sql(f"SELECT {columns}")
        [alone] = with_row_hashes(rows).collect()
        [[one]] = Outputs((Output("out", sink),)).rows(rows).collect()
        [[[many]]] = Outputs((Output("out", sink, rows="array(struct(*))"),)).rows(rows).collect()
        assert alone[HASH_COLUMN] == one[HASH_COLUMN] == many[HASH_COLUMN]
        hashes.add(alone[HASH_COLUMN])
    assert len(hashes) == 2


@pytest.mark.long
def test_what_spark_need_not_agree_on_is_one_row(spark):
    """Whether a null can be there is another thing in a batch than in a stream."""
    sure = spark.sql("SELECT array(1, 2) AS a, named_struct('x', 1) AS b")
    unsure = spark.createDataFrame(sure.collect(), "a array<int>, b struct<x:int>")
    [one], [other] = (with_row_hashes(rows).collect() for rows in (sure, unsure))
    assert one[HASH_COLUMN] == other[HASH_COLUMN]


def test_a_column_arrives_under_its_name_whatever_is_in_it(spark):
    """A kind that takes any columns says nothing of names: a dot, a quote, a space."""
    frame = spark.createDataFrame([("a", "b", "c")], ["a.b", "it`s", "of late"])
    rows = frame.selectExpr(*own_columns(frame.schema))
    assert with_row_hashes(rows).columns == ["a.b", "it`s", "of late", HASH_COLUMN]
    assert rows.collect() == frame.collect()
    inside = frame.selectExpr("struct(*) AS `orders`")
    assert inside.selectExpr(*own_columns(frame.schema, "`orders`.")).collect() == frame.collect()


def test_a_task_gets_columns_whose_names_sql_would_read_otherwise(spark, tmp_path):
    """Spark's mapInArrow looks each column up by its name: a dot is a field, a backtick a quote."""
    rows = spark.sql("SELECT named_struct('b', 1) AS a, 'x' AS `a.b`, 2 AS `c.d`, 3 AS `it``s`")
    files = FileSink(str(tmp_path / "out"))
    files.storage().check(files.name)
    sink = OneSink(files, "at_least_once")
    [report] = sink.prepare(sink.rows(rows))
    assert report.rows == 1
    written = spark.read.parquet(str(tmp_path / "out"))
    assert written.columns == rows.columns
    assert written.collect() == rows.collect()


def test_columns_without_names_of_their_own_are_refused(spark):
    for names in (["a", "A"], ["a", HASH_COLUMN]):
        frame = spark.createDataFrame([("1", "2")], names)
        with pytest.raises(ConfigurationError, match="each name once, and none called __eos_hash"):
            own_columns(frame.schema)
