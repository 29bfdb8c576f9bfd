"""What Spark's planner is told, and what a user may give."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.pandas.types import from_arrow_schema

from airflow_eos.arrow.records import kernels as loops
from airflow_eos.arrow.source import kafka
from airflow_eos.arrow.source.columns import prepared_by, row_hashes
from airflow_eos.arrow.source.kafka import ArrowKafkaSource, _stepped_over
from airflow_eos.arrow.source.task import KafkaInput, ReadRanges, as_declared
from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.rulings import skip_input
from airflow_eos.core.delivery.source import is_own
from airflow_eos.errors import ConfigurationError, TopicError
from airflow_eos.kafka.client.reading import OffsetSpan
from airflow_eos.kafka.client.settings import KafkaSettings

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable
    from pyspark.sql.worker.plan_data_source_read import write_read_func_and_partitions

    from airflow_eos.arrow.source.stream import _ARROW, Ranges, RangeStream, data_source
except ImportError:
    pytest.skip("Spark < 4.2 asks no Python data source for a limit", allow_module_level=True)


START = {"t": {"0": 5, "1": 7}}
BEFORE, NOW = {("t", 0): 9}, {("t", 0): 9, ("t", 1): 8}


REPORTED = pa.schema([("report", pa.binary())])
SECRET = "a-key-of-the-store"


def for_tasks(tmp_path: Path, work: Any = None) -> bytes:
    """What Spark sends to each task of a source, by Spark's own code."""
    store = CheckpointStore.open(str(tmp_path / SECRET))
    settings = KafkaSettings.from_librdkafka({"bootstrap.servers": "none:1"})
    made = data_source(KafkaInput(settings, ("t",), store), "short", work)
    source = pickle.loads(cloudpickle.dumps(made({})))  # to the process that plans
    out = io.BytesIO()
    write_read_func_and_partitions(
        out,
        reader=source.streamReader(None),
        data_source=source,
        schema=from_arrow_schema(_ARROW if work is None else REPORTED),
        max_arrow_batch_size=1,
        binary_as_bytes=True,
    )
    return out.getvalue()


def in_a_task(command: bytes, *spans: OffsetSpan) -> list[dict[str, Any]]:
    read, _ = pickle.loads(command[4:])
    partition = pickle.dumps(Ranges([(span, 2) for span in spans]))
    return [
        row
        for batch in read(iter([pa.RecordBatch.from_pydict({"partition": [partition]})]))
        for row in batch.to_pylist()
    ]


def test_a_task_is_told_its_range_and_no_secret_of_the_checkpoint(tmp_path):
    command = for_tasks(tmp_path)
    assert SECRET.encode() not in command
    assert in_a_task(command, OffsetSpan("t", 1, 5, 9), OffsetSpan("u", 0, 1, 2)) == [
        {"topic": "t", "partition": 1, "from": 5, "until": 9, "split": 2},
        {"topic": "u", "partition": 0, "from": 1, "until": 2, "split": 2},
    ]


def test_a_task_all_of_whose_range_is_stepped_over_reads_nothing(tmp_path):
    assert in_a_task(for_tasks(tmp_path)) == []


def test_the_same_offsets_are_read_around_in_every_start(tmp_path):
    """Also where a batch is read again: its promise stays the same."""
    store = CheckpointStore.open(str(tmp_path))
    skip_input(store, "t", 0, 3, 5, ruled_by="ann")
    for _ in range(2):
        gaps = _stepped_over(store, ("t", "u"))
        settings = KafkaSettings.from_librdkafka({"bootstrap.servers": "none:1"})
        stream = RangeStream(KafkaInput(settings, ("t",), store, skipped=gaps))
        (task, other) = stream.partitions({"t": {"0": 1}}, {"t": {"0": 9, "1": 4}})
        assert isinstance(task, Ranges)
        assert isinstance(other, Ranges)
        assert task.rows == [("t", 0, 1, 3, 0), ("t", 0, 6, 9, 0)]
        assert other.rows == [("t", 1, 0, 4, 0)]


def test_a_source_is_opened_without_the_offsets_that_a_person_gave_up(tmp_path, monkeypatch):
    """In each start anew: so a batch that is read again keeps what was promised of it."""
    store = CheckpointStore.open(str(tmp_path))
    skip_input(store, "t", 0, 3, 5, ruled_by="ann")
    monkeypatch.setattr(kafka, "check_workers", lambda *_args, **_how: None)
    monkeypatch.setattr(kafka, "OpenedKafkaSource", lambda _spark, read, _task: read)
    spark: Any = None
    read: Any = ArrowKafkaSource("none:1", "t").connected(spark, store)
    assert read.skipped == (OffsetSpan("t", 0, 3, 6),)


def test_what_a_task_does_with_its_range_is_done_where_it_is_read(tmp_path):
    def work(ranges: Any) -> Any:
        for each in ranges:
            (row,) = each.to_pylist()
            yield pa.RecordBatch.from_pydict({"report": [str(row["until"]).encode()]})

    command = for_tasks(tmp_path, work)
    assert SECRET.encode() not in command
    assert in_a_task(command, OffsetSpan("t", 1, 5, 9)) == [{"report": b"9"}]


@pytest.mark.parametrize(("said", "kept"), [({}, b"1"), ({"POLARS_MAX_THREADS": "4"}, b"4")])
def test_polars_has_a_thread_for_each_core_of_its_task_when_a_function_brings_it(
    tmp_path, monkeypatch, said, kept
):
    """It looks when it is imported, and would take every core of the machine in every worker."""

    class Asks:
        """As a module that is imported with a function."""

        def __reduce__(self) -> Any:
            return os.getenv, ("POLARS_MAX_THREADS", "")

    asks = Asks()

    def work(_ranges: Any) -> Any:
        yield pa.RecordBatch.from_pydict({"report": [str(asks).encode()]})

    command = for_tasks(tmp_path, work)
    monkeypatch.setattr(os, "environ", dict(said))
    assert in_a_task(command, OffsetSpan("t", 1, 5, 9)) == [{"report": kept}]


class Told:
    """An input whose cluster says this, one answer after the other."""

    max_rows_per_task = None
    max_tasks = None
    leaves_out = False

    high_watermark = 0

    def __init__(self, *ends: dict[tuple[str, int], int]) -> None:
        self._ends = list(ends)

    def ends(self, _wire: Any) -> dict[tuple[str, int], int]:
        return self._ends.pop(0)

    def not_before(self, _wire: Any, ends: Any, begun: Any) -> dict[tuple[str, int], int]:
        """As :class:`KafkaInput` has it, where rows of an open transaction are there."""
        return {
            place: begun[place] if end < begun.get(place, 0) <= self.high_watermark else end
            for place, end in ends.items()
        }


def planner(monkeypatch: pytest.MonkeyPatch, *ends: dict[tuple[str, int], int]) -> Any:
    monkeypatch.setattr(RangeStream, "_connected", lambda _self: None)
    return RangeStream(Told(*ends))  # type: ignore[arg-type]


@pytest.mark.parametrize("available_now", [False, True])
def test_a_partition_that_one_broker_does_not_know_yet_is_asked_for_again(
    monkeypatch, available_now
):
    plan = planner(monkeypatch, BEFORE, NOW)
    if available_now:
        plan.prepareForTriggerAvailableNow()
    end = {"t": {"0": 9, "1": 8}}
    assert plan.latestOffset(START, ReadAllAvailable()) == end
    if available_now:  # the target is the new one, and is not asked for again
        assert plan.latestOffset(end, ReadAllAvailable()) is end


def test_one_broker_that_knows_less_has_no_partition_left_out(monkeypatch):
    """It would be read from its beginning, as a new one, as soon as it is known again."""
    monkeypatch.setattr(Told, "leaves_out", True)
    plan = planner(monkeypatch, BEFORE, NOW)
    assert plan.latestOffset(START, ReadAllAvailable()) == {"t": {"0": 9, "1": 8}}


def test_a_partition_that_is_gone_both_times_is_an_error(monkeypatch):
    plan = planner(monkeypatch, BEFORE, BEFORE)
    with pytest.raises(TopicError, match="Partition 1 of topic 't'"):
        plan.latestOffset(START, ReadAllAvailable())


@pytest.mark.parametrize("available_now", [False, True])
def test_a_partition_that_is_gone_both_times_is_left_out_where_a_person_says_so(
    monkeypatch, available_now
):
    """Also where nothing else is new: a batch must say it, or each start would ask again."""
    monkeypatch.setattr(Told, "leaves_out", True)
    plan = planner(monkeypatch, BEFORE, BEFORE, *([BEFORE] * 2))
    if available_now:
        plan.prepareForTriggerAvailableNow()
    assert plan.latestOffset(START, ReadAllAvailable()) == {"t": {"0": 9}}
    nothing_new = {"t": {"0": 9, "1": 7}}
    assert plan.latestOffset(nothing_new, ReadAllAvailable()) == {"t": {"0": 9}}


@pytest.mark.parametrize("available_now", [False, True])
def test_a_checkpoint_past_the_last_stable_offset_has_nothing_new_until_that_has_gone_on(
    monkeypatch, available_now
):
    """Spark's own source reads rows of open transactions, unless told otherwise."""
    monkeypatch.setattr(Told, "high_watermark", 7)
    stable, later = {("t", 0): 5, ("t", 1): 3}, {("t", 0): 5, ("t", 1): 20}
    plan = planner(monkeypatch, stable, later)
    if available_now:
        plan.prepareForTriggerAvailableNow()
    assert plan.latestOffset(START, ReadAllAvailable()) is START
    if not available_now:
        assert plan.latestOffset(START, ReadAllAvailable()) == {"t": {"0": 5, "1": 20}}


def test_the_end_that_a_query_has_to_reach_stays_where_it_was(monkeypatch):
    """Or ``availableNow`` would never end, where rows come as fast as they are read."""
    plan = planner(monkeypatch, {("t", 0): 9, ("t", 1): 8}, {("t", 0): 99, ("t", 1): 98})
    plan.prepareForTriggerAvailableNow()
    end = plan.latestOffset(START, ReadAllAvailable())
    assert end == {"t": {"0": 9, "1": 8}}
    assert plan.latestOffset(end, ReadAllAvailable()) is end


# --- What a user gives, and what a transformation may give back -----------------------------------


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
ArrowKafkaSource("none:1", "t").connected(None, None)
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
    with pytest.raises(ConfigurationError, match=f"{name}=0: expected an integer from 1"):
        replace(SOURCE, **{name: 0})  # type: ignore[arg-type]


def test_no_topic_is_refused():
    with pytest.raises(ConfigurationError, match=r"topics=\[\]: expected a text"):
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
