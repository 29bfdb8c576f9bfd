"""What a Python worker of Spark does once, and into which folders it puts rows."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DayTimeIntervalType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.delivery import task
from airflow_eos.core.delivery.spill import SpillingSink
from airflow_eos.core.delivery.task import HASH_COLUMN
from airflow_eos.errors import ConfigurationError, DeliveryError
from airflow_eos.kafka import sink as kafka
from airflow_eos.kafka.transactions.identity import (
    OffsetRange,
    TransactionIdentity,
    WrittenTransaction,
)
from airflow_eos.kinds.files.folder import partition
from airflow_eos.kinds.files.sink import Split
from airflow_eos.sinks import DeltaSink, KafkaSink, LakeUpsert

_LOOK = """
import ctypes, gc
import pyarrow as pa
from airflow_eos.core.delivery.workers import tune_process
tune_process()
frozen = gc.get_freeze_count()
kept = [[] for _ in range(1000)]
tune_process()
glibc = hasattr(ctypes.CDLL(None), "mallopt")
once = gc.get_freeze_count() == frozen
print(frozen > 10_000, once, pa.default_memory_pool().backend_name, glibc)
"""


def test_a_worker_is_tuned_once_and_garbage_collection_leaves_its_modules_alone():
    """In a process of its own: what it sets is the whole process's."""
    done = subprocess.run(
        [sys.executable, "-c", _LOOK], capture_output=True, text=True, check=True, timeout=60
    )
    frozen, once, pool, glibc = done.stdout.split()
    assert frozen == "True"
    assert once == "True", "what a failed batch left must stay collectable"
    assert (pool == "system") is (glibc == "True")


def test_what_is_prepared_is_aborted_where_another_output_of_the_task_cannot_prepare(monkeypatch):
    """It would keep readers of its partitions back until its timeout passes."""
    identity, aborted = TransactionIdentity("etl-0-0", 7, 1), []
    writer = SimpleNamespace(
        begin=lambda *_: None,
        write=lambda _rows: None,
        finish=lambda: None,
        prepare=lambda: WrittenTransaction(identity, (OffsetRange("out", 0, 5, 6),), 2, 0, 60_000),
        abort=lambda prepared=None: aborted.append(prepared),
    )

    class Refused:
        def write(self, rows): ...

        def finish(self): ...  # so it is asked after the transaction is prepared

        def prepare(self, _fingerprint):
            raise DeliveryError("no place is left in max_prepared_transactions")

        def abort(self): ...

    monkeypatch.setattr(kafka, "_warm_writer", lambda _sink: writer)
    sink = KafkaSink("unused:9092", topic="out", transactional_id_prefix="etl")
    outlets = (task.outlet(sink, "exactly_once"), task.TaskOutput("totals", lambda *_: Refused()))
    with pytest.raises(DeliveryError, match="max_prepared_transactions"):
        task.SinkTask(outlets).run(0, 0, iter([_rows(2)]))
    assert aborted == [identity]


def test_outputs_prepare_while_one_that_sends_by_itself_does_so():
    """Kafka acknowledges while a file is closed; reports are in the order of the outputs."""
    seen: list[str] = []

    class Plain:
        def __init__(self, name: str) -> None:
            self.name = name

        def write(self, rows: Any) -> None: ...

        def prepare(self, _fingerprint: str) -> None:
            seen.append(f"{self.name} prepares")

        def abort(self) -> None: ...

    class Sends(Plain):
        def finish(self) -> None:
            seen.append(f"{self.name} sends")

    kinds = {"kafka": Sends, "files": Plain, "other": Sends, "table": Plain}
    outlets = [
        task.TaskOutput(name, lambda *_, name=name, kind=kind: kind(name))
        for name, kind in kinds.items()
    ]
    reports = task.SinkTask(tuple(outlets)).run(0, 0, iter([_rows(2)]))
    assert [each.participant for each in reports] == list(kinds)
    assert seen == [
        "kafka sends",
        "other sends",
        "files prepares",
        "table prepares",
        "kafka prepares",
        "other prepares",
    ]


@pytest.mark.parametrize("rows", [0, 2])
def test_a_worker_is_tuned_after_its_first_rows_and_not_after_an_empty_task(monkeypatch, rows):
    """An empty task sends nothing: what Kafka's messages need is not loaded yet."""
    tuned = []
    writer = SimpleNamespace(
        begin=lambda *_: None,
        write=lambda _rows: None,
        prepare=lambda: WrittenTransaction(None, (), rows, 0, 0) if rows else None,
    )
    monkeypatch.setattr(kafka, "_warm_writer", lambda _sink: writer)
    monkeypatch.setattr(task, "tune_process", lambda: tuned.append(True))
    sink = KafkaSink("unused:9092", topic="out", transactional_id_prefix="etl")
    outlet = task.TaskOutput(sink.name, partial(sink.opened, transactional=False))
    [report] = task.SinkTask((outlet,)).run(0, 0, iter([_rows(rows)]))
    assert report.rows == rows
    assert bool(tuned) is bool(rows)


def test_a_task_that_warms_its_worker_writes_nothing_and_reports_its_rows(monkeypatch):
    asked: list[pa.RecordBatch] = []
    writer = SimpleNamespace(destination=SimpleNamespace(require_sendable=asked.append))  # no begin
    monkeypatch.setattr(kafka, "_warm_writer", lambda _sink: writer)
    sink = KafkaSink("unused:9092", topic="out", transactional_id_prefix="etl")
    warming = task.SinkTask((task.outlet(sink, "exactly_once", warms=True),), only=frozenset())
    [report] = warming.run(0, 0, iter([_rows(0), _rows(2), _rows(3)]))
    assert (report.rows, report.work) == (5, None)
    [rows] = asked
    assert (rows.num_rows, rows.schema.names) == (2, ["value"]), "a task's first rows do"


def _rows(count: int) -> pa.RecordBatch:
    hashes = pa.array([0] * count, pa.int64())
    return pa.record_batch({"value": pa.array([b"v"] * count, pa.binary()), HASH_COLUMN: hashes})


# --- Rows are put into the folders of their own values, however many columns name a folder --------


def test_many_columns_of_many_values_each_go_to_their_own_folder():
    """The product of their counts is beyond 64 bits: it put rows into folders of other values."""
    names = [f"c{at}" for at in range(9)]
    folders = [(f"v{at}",) * 9 for at in range(256)]
    folders += [(f"v{at}", *("v0",) * 8) for at in range(1, 256)]  # apart in the first one alone
    columns = dict(zip(names, zip(*folders, strict=True), strict=True))
    rows = pa.RecordBatch.from_pydict({**columns, "of": range(len(folders))})
    parts = Split(names, partial(partition, names))(rows)
    assert {folder: part["of"].to_pylist() for folder, part in parts} == {
        partition(names, values): [at] for at, values in enumerate(folders)
    }


def test_rows_of_a_folder_keep_their_order_and_nulls_are_values():
    rows = pa.RecordBatch.from_pydict(
        {"a": ["x", None, "x", "y", None], "b": ["1", "1", "2", None, "1"], "of": [0, 1, 2, 3, 4]}
    )
    parts = Split(["a", "b"], lambda values: "/".join(map(str, values)))(rows)
    assert {folder: part["of"].to_pylist() for folder, part in parts} == {
        "x/1": [0],
        "None/1": [1, 4],
        "x/2": [2],
        "y/None": [3],
    }


class _Theirs:
    """A user's sink, whose own field happens to be called ``sink``: one that moves rows."""

    name = "theirs"
    sink = SimpleNamespace(distribute="hash", fixed_columns=True, topics_of=len)
    perishable = True


def test_only_our_wrapper_of_a_sink_is_looked_into(tmp_path):
    theirs: Any = _Theirs()
    assert not task.distributes(theirs), "what it has inside is its own"
    assert not task.is_fixed(theirs)
    moves: Any = SimpleNamespace(name="moves", distribute="hash", distribution=list)
    kept: Any = SpillingSink(moves, CheckpointStore.open(tmp_path))
    assert task.distributes(kept), "a wrapped sink is asked as if it were alone"
    assert not task.distributes(SpillingSink(theirs, CheckpointStore.open(tmp_path)))


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (VariantType(), "hold variants"),
        (ArrayType(StructType([StructField("a", VariantType())])), "hold variants"),
        (MapType(StringType(), VariantType()), "hold maps"),
        (ArrayType(CalendarIntervalType()), "make_interval"),
    ],
    ids=str,
)
def test_a_type_that_spark_neither_hashes_nor_brings_is_refused_by_name(kind, says):
    """Spark's own words are of an expression that the user has never written."""
    with pytest.raises(ConfigurationError, match=f"columns odd, .*{says}|columns odd .*{says}"):
        task.own_columns(StructType([StructField("odd", kind)]))


def test_names_that_are_words_for_types_are_names():
    named = StructType([StructField("variant", DayTimeIntervalType())])
    whole = StructType([StructField("interval", named)])
    assert task.own_columns(whole) == ["`interval` AS `interval`"]


def test_a_lake_table_is_put_together_by_columns_with_any_name():
    sink = DeltaSink("/t", application_id="etl", upsert=LakeUpsert(key=["a.b", "it`s"]))
    assert sink.distribution() == ["`a.b`", "`it``s`"]
