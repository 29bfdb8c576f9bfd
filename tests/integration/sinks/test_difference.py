"""Rows that were promised and are not delivered, where other tasks cut the batch: on real Spark."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from airflow_eos.core.delivery.replay import undelivered
from airflow_eos.kafka.sink import DELIVERED_SCHEMA, kafka_columns

KEYS, A_KEY = 12, 50


def in_tasks(spark: SparkSession, schema: str, *tasks: Sequence[tuple[Any, ...]]) -> DataFrame:
    """Rows that are in these partitions, in this order."""
    parts = [list(part) for part in tasks]
    dealt = spark.sparkContext.parallelize(range(len(parts)), len(parts))
    frame = spark.createDataFrame(dealt.flatMap(lambda n: parts[n]), schema)
    if "topic" not in frame.columns:
        return frame
    return frame.selectExpr(*kafka_columns(frame.schema, "", default_topic="out"))


def seen(spark: SparkSession, rows: Sequence[dict[str, Any]]) -> DataFrame:
    """Rows as they are read back from the topic."""
    found: list[tuple[Any, ...]] = []
    for row in rows:
        value, key = (text and text.encode() for text in (row.get("value"), row.get("key")))
        found.append((value, key, "out", row.get("partition", 0), [], row.get("timestamp")))
    return spark.createDataFrame(found, DELIVERED_SCHEMA)


def dealt(owner: Callable[[int], int], tasks: int) -> list[list[tuple[str, str]]]:
    """The rows of every key in order, each key in the task that owns it, keys interleaved."""
    rows: list[list[tuple[str, str]]] = [[] for _ in range(tasks)]
    for number in range(A_KEY):
        for key in range(KEYS):
            rows[owner(key)].append((f"k{key}", f"{number:03}"))
    return rows


def by_task(frame: DataFrame) -> list[Row]:
    """The rows with the partition they are in, each partition in its own order."""
    return frame.withColumn("task", F.spark_partition_id()).collect()


@pytest.mark.parametrize(("before", "now"), [(2, 1), (1, 3), (3, 2), (4, 3)])
def test_the_rows_of_a_key_keep_their_order_under_another_number_of_tasks(
    spark: SparkSession, before: int, now: int
) -> None:
    rows = in_tasks(spark, "key string, value string", *dealt(lambda k: k % now, now))
    kept_by_readers = [
        {"key": key, "value": value} for key, value in dealt(lambda k: k % before, before)[0]
    ]
    there = set() if before == 1 else {row["key"] for row in kept_by_readers}
    found = by_task(undelivered(rows, seen(spark, kept_by_readers if there else []), tasks=now))
    order, tasks = defaultdict(list), defaultdict(set)
    for row in found:
        order[row.key].append(row.value)
        tasks[row.key].add(row.task)
    lost = {f"k{key}" for key in range(KEYS)} - there
    assert order == {key: [f"{n:03}" for n in range(A_KEY)] for key in lost}
    assert all(len(of_key) == 1 for of_key in tasks.values()), "two tasks write a key side by side"
    assert {row.task for row in found} <= set(range(now))


def test_of_equal_rows_the_earliest_count_as_delivered(spark: SparkSession) -> None:
    """Readers have a beginning of what a task wrote: x, y, x and y, x are the input's order."""
    rows = in_tasks(
        spark, "key string, value string", [("k", each) for each in "xyxzx"], [("k", "x")]
    )
    there = [{"key": "k", "value": each} for each in "xxy"]
    found = by_task(undelivered(rows, seen(spark, there), tasks=2))
    assert [row.value for row in found if row.value != "x"] == ["z"]
    assert Counter(row.value for row in found) == {"z": 1, "x": 2}
    first = [row.value for row in found if row.task == found[0].task]
    assert first[:2] == ["z", "x"], "an x before z was kept instead of the one after it"


def test_a_null_is_a_value_and_another_key_another_row(spark: SparkSession) -> None:
    rows = in_tasks(
        spark, "key string, value string", [(None, "a"), ("a", None), (None, None), ("k", "a")]
    )
    there: list[dict[str, Any]] = [{"key": None, "value": "a"}, {"key": None, "value": None}]
    found = by_task(undelivered(rows, seen(spark, there), tasks=1))
    assert [(row.key, row.value) for row in found] == [("a", None), ("k", "a")]


def test_what_was_delivered_and_is_not_in_the_batch_takes_no_row_away(spark: SparkSession) -> None:
    rows = in_tasks(spark, "value string", [("a",), ("b",)])
    found = by_task(undelivered(rows, seen(spark, [{"value": "x"}, {"value": "x"}]), tasks=1))
    assert [row.value for row in found] == ["a", "b"]


STAMP, LATER = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("schema", "row", "there"),
    [
        ("value string, partition int", ("a", None), {"partition": 3}),
        ("value string, timestamp timestamp", ("a", None), {"timestamp": STAMP}),
        ("value string, timestamp timestamp", ("a", STAMP), {"timestamp": None}),
        (
            "value string, partition int, timestamp timestamp",
            ("a", None, STAMP),
            {"partition": 3, "timestamp": None},
        ),
    ],
    ids=["no-partition", "no-timestamp", "stamped-by-the-topic", "neither"],
)
def test_what_kafka_filled_in_is_not_compared(
    spark: SparkSession, schema: str, row: tuple[Any, ...], there: dict[str, Any]
) -> None:
    rows = in_tasks(spark, schema, [("b", *row[1:]), row], [row])
    found = by_task(undelivered(rows, seen(spark, [{"value": "a"} | there]), tasks=2))
    assert sorted(each.value for each in found) == ["a", "b"]


@pytest.mark.parametrize(
    ("schema", "given", "there"),
    [
        ("value string, partition int", 1, {"partition": 2}),
        ("value string, timestamp timestamp", STAMP, {"timestamp": LATER}),
    ],
)
def test_what_the_rows_gave_is_compared(
    spark: SparkSession, schema: str, given: Any, there: dict[str, Any]
) -> None:
    rows = in_tasks(spark, schema, [("a", given)])
    found = by_task(undelivered(rows, seen(spark, [{"value": "a"} | there]), tasks=1))
    assert [each.value for each in found] == ["a"]


def test_rows_that_gave_their_partition_pair_before_those_that_left_it_open(
    spark: SparkSession,
) -> None:
    rows = in_tasks(
        spark, "value string, partition int", [("a", None), ("a", 1), ("a", 2), ("a", None)]
    )
    there: list[dict[str, Any]] = [{"value": "a", "partition": at} for at in (1, 1, 2)]
    found = by_task(undelivered(rows, seen(spark, there), tasks=1))
    assert [(each.value, each.partition) for each in found] == [("a", None)]


def test_a_column_with_a_dot_in_its_name_is_compared_like_any_other(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("a", 1), ("b", 2)], "`k.ey` string, `it``s` int")
    [left] = undelivered(rows, rows.limit(1), tasks=1).collect()
    assert (left["k.ey"], left["it`s"]) == ("b", 2)
