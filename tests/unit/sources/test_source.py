"""What a user gives, and what a transformation may give back."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace

import pyarrow as pa
import pytest

from airflow_eos.delivery.source import is_own
from airflow_eos.errors import ConfigurationError
from airflow_eos.kafka.records import kernels as loops
from airflow_eos.sources import ArrowKafkaSource
from airflow_eos.sources.columns import prepared_by, row_hashes
from airflow_eos.sources.task import ReadRanges, as_declared

SOURCE = ArrowKafkaSource("none:1", "t", kafka_config={"sasl.password": "hidden"})
DECLARED = pa.schema([("key", pa.binary()), ("value", pa.string())])


def test_it_is_a_value_that_shows_no_secret():
    assert "hidden" not in repr(SOURCE)
    assert pickle.loads(pickle.dumps(SOURCE)) == SOURCE
    assert is_own(SOURCE)


def test_a_frame_with_a_column_of_that_name_is_no_source_of_ours():
    class Frame:
        def __getattr__(self, name):
            return f"column {name}"

    assert not is_own(Frame())


def test_an_app_under_an_older_spark_can_name_it_and_is_told_what_it_takes() -> None:
    """Spark < 4.2 has no such module: an import that needs it would be all that is said."""
    app = """
import sys, pyspark, pyspark.sql.datasource
pyspark.__version__, sys.modules["pyspark.sql.streaming.datasource"] = "4.0.0", None
from airflow_eos.sources import ArrowKafkaSource
ArrowKafkaSource("none:1", "t").opened(None, None)
"""
    ran = subprocess.run([sys.executable, "-c", app], capture_output=True, text=True, check=False)
    said = ran.stderr.splitlines()[-1]
    assert "ConfigurationError: ArrowKafkaSource needs Spark 4.2" in said, ran.stderr


def test_columns_that_kafka_has_not_are_refused():
    with pytest.raises(ConfigurationError, match=r"\['keys'\]: expected some of key, value"):
        SOURCE.select("keys")
    with pytest.raises(ConfigurationError, match="before map"):
        SOURCE.map(iter).select("key")


@pytest.mark.parametrize("name", ["max_rows_per_batch", "max_rows_per_task", "max_tasks"])
def test_limits_below_one_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} 0: expected 1 or more"):
        replace(SOURCE, **{name: 0})  # type: ignore[arg-type]


def test_no_topic_is_refused():
    with pytest.raises(ConfigurationError, match="topics is empty"):
        ArrowKafkaSource("none:1", [])


def test_what_polars_gives_is_brought_into_the_declared_types_and_order():
    given = pa.RecordBatch.from_pydict(
        {"value": pa.array(["v"], pa.large_string()), "key": pa.array([b"k"], pa.large_binary())}
    )
    found = as_declared(given, DECLARED)
    assert found.schema == DECLARED
    assert found.to_pylist() == [{"key": b"k", "value": "v"}]


@pytest.mark.parametrize("columns", [{"key": [b"k"]}, {"key": [b"k"], "value": pa.array([[1]])}])
def test_what_was_not_declared_is_refused_with_both_schemas(columns):
    given = pa.RecordBatch.from_pydict(columns)
    with pytest.raises(ConfigurationError, match=r"gave .*'key': 'binary'.*expected .*'value'"):
        as_declared(given, DECLARED)


def test_columns_of_a_kafka_sink_are_made_without_spark():
    schema = pa.schema([("value", pa.binary()), ("timestamp", pa.timestamp("us", tz="UTC"))])
    prepared = prepared_by(
        ["`value` AS `value`", "date_trunc('millisecond', `timestamp`) AS `timestamp`"], schema
    )
    assert prepared is not None
    rows = pa.RecordBatch.from_arrays(
        [pa.array([b"v", None]), pa.array([1_999, -1], schema.field("timestamp").type)],
        schema=schema,
    )
    found = prepared(rows)
    assert found.column("timestamp").cast("int64").to_pylist() == [1_000, -1_000]
    assert len(set(found.column("__eos_hash").to_pylist())) == 2


@pytest.mark.parametrize("way", ["numpy", "compiled"])
def test_a_null_is_another_row_than_none_beside_it(way, monkeypatch):
    """``xxhash64`` passes over nulls: without a flag, rows could change and the hash would not."""
    loops.warm(wait=True)
    monkeypatch.setattr(loops, "_loaded", list(loops._loaded) if way == "compiled" else [])
    rows = pa.RecordBatch.from_pydict({"a": [None, b"a", b""], "b": [b"a", None, b"a"]})
    assert len(set(row_hashes(rows.columns, 3).tolist())) == 3


def test_a_transformation_gets_no_more_rows_at_a_time_than_a_cache_holds(monkeypatch):
    """Of 40,000 rows at a time Polars parses JSON slower than of 10,000."""
    given = [pa.RecordBatch.from_pydict({"value": [b"v%d" % n for n in range(25_001)]})]
    seen = []

    def noted(batches):
        for batch in batches:
            seen.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(ReadRanges, "_rows", lambda _self, _ranges: iter(given))
    read = ReadRanges(None, ("value",), (noted,), given[0].schema)  # type: ignore[arg-type]
    assert pa.Table.from_batches(read(iter([]))).equals(pa.Table.from_batches(given))
    assert seen == [10_000, 10_000, 5_001]
    assert list(replace(read, transformations=())(iter([]))) == given, "not cut for nothing"
