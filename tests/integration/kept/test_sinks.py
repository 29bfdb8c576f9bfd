"""The sinks of kept rows before the first batch, their addresses, and rows that never apply."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from airflow_eos.core.checkpoint import (
    CheckpointStore,
    DecisionLog,
    PipelineIdentity,
    claim,
    rulings,
)
from airflow_eos.core.checkpoint.pipeline import owner_of
from airflow_eos.core.delivery.task import outlet
from airflow_eos.core.recovery.execute import Result
from airflow_eos.core.recovery.facts import gather
from airflow_eos.core.recovery.plan import Action
from airflow_eos.errors import ConfigurationError, DeliveryError
from airflow_eos.kinds.spill import task as spill
from airflow_eos.kinds.spill.participant import SpilledRows, batch_of, table_of, task_of
from airflow_eos.kinds.sql.servers import as_text, parts_of
from airflow_eos.kinds.upsert.redis import RedisUpsert
from airflow_eos.kinds.upsert.sink import UpsertSink
from airflow_eos.kinds.upsert.target import RowSchema
from airflow_eos.kinds.wal.participant import made
from airflow_eos.kinds.wal.sink import WriteAheadSink
from airflow_eos.recovery import execute_recovery, plan_recovery, shortfall
from tests.integration.kept.keeping import decided, keep

TARGET = RedisUpsert("redis://:hunter2@127.0.0.1:1/0", "t:")
INT = t.IntegerType()
FITS = {"id": INT, "gone": t.BooleanType()}
POST = "tests.integration.kept.endpoint:post"


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    (tmp_path / "checkpoint").mkdir()
    return CheckpointStore.open(tmp_path / "checkpoint")


@pytest.fixture
def batch_7(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Spark tells its tasks; that it does is seen in the crash tests."""
    monkeypatch.setattr(spill, "running_batch", lambda: 7)


def struct(columns: dict[str, t.DataType]) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in columns.items()])


def rows(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_a_task_leaves_one_object_with_its_batch_in_the_key(store, batch_7):
    target: Any = Told()
    sink = UpsertSink(target, ["id"], deleted="gone", name="totals").bound(store)
    writer = sink.opened(3, 1)
    writer.write(rows(id=["a"], gone=[False]))
    writer.write(rows(id=["b"], gone=[True]))
    assert SpilledRows(store, "totals").listed() == [], "nothing before it is whole"
    work = writer.prepare("f" * 32)
    assert (work.kind, work.participant, work.rows) == ("upsert", "totals", 2)
    assert (batch_of(work.key), task_of(work.key)) == (7, 3)
    about = RowSchema(("id",), "gone").metadata()
    assert work.detail == {"bytes": SpilledRows(store, "totals").listed()[0].size} | about
    kept = SpilledRows(store, "totals").read(work.key)
    assert kept is not None
    table = table_of(kept, "there")
    assert table["id"].to_pylist() == ["a", "b"]
    assert RowSchema.of(table, "there") == RowSchema(("id",), "gone")


def test_a_task_without_rows_leaves_nothing(store, batch_7):
    sink = WriteAheadSink(POST).bound(store)
    assert sink.opened(0, 0).prepare("0" * 32) is None
    given_up = sink.opened(0, 0)
    given_up.write(rows(value=["x"]))
    given_up.abort()
    assert SpilledRows(store, "sink").listed() == []


def test_no_two_tasks_ever_share_a_token(store, batch_7):
    sink = WriteAheadSink(POST).bound(store)
    keys = set()
    for _ in range(50):
        writer = sink.opened(0, 0)
        writer.write(rows(value=["x"]))
        keys.add(writer.prepare("0" * 32).key)
    assert len(keys) == 50


def test_a_row_without_a_key_is_refused_before_anything_is_kept(store, batch_7):
    writer = UpsertSink(TARGET, ["id", "day"]).bound(store).opened(0, 0)
    with pytest.raises(DeliveryError, match="no day, of the key"):
        writer.write(rows(id=["a"], day=[None], value=[1]))
    assert SpilledRows(store, "sink").listed() == []


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"value": INT}, "no column id, gone"),
        ({"id": INT, "gone": INT}, "gone tells of deletes and is int"),
        ({**FITS, "tags": t.ArrayType(t.StringType())}, "tags cannot go to Redis"),
        ({**FITS, "_eos": t.StringType()}, "_eos cannot go to Redis"),
        ({**FITS, "x": INT, "X": INT}, "each name once"),
    ],
)
def test_columns_that_cannot_go_there_are_refused_by_name(schema, said):
    with pytest.raises(ConfigurationError, match=said):
        UpsertSink(TARGET, ["id"], deleted="gone").columns(struct(schema))


def test_columns_that_can_are_taken_as_they_are():
    schema = struct({"id": t.IntegerType(), "v": t.DecimalType(5, 2)})
    assert UpsertSink(TARGET, ["id"]).columns(schema, "`o`.") == [
        "`o`.`id` AS `id`",
        "`o`.`v` AS `v`",
    ]
    assert WriteAheadSink(POST).columns(schema) == ["`id` AS `id`", "`v` AS `v`"]


@pytest.mark.parametrize("key", ["id", [], ["id", "id"], ["gone"]])
def test_a_key_that_is_none_is_refused(key):
    with pytest.raises(ConfigurationError, match="key"):
        UpsertSink(TARGET, key, deleted="gone")


def test_a_sink_that_knows_no_checkpoint_says_so(batch_7):
    sinks: tuple[Any, ...] = (UpsertSink(TARGET, ["id"]), WriteAheadSink(POST))
    for sink in sinks:
        for asked in (lambda s=sink: s.connect(timedelta(1)), lambda s=sink: s.opened(0, 0)):
            with pytest.raises(ConfigurationError, match="does not know its checkpoint"):
                asked()


class Told:
    """A target that tells what tasks do to it."""

    address: Mapping[str, str] = {"system": "told", "target": "t"}

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def with_limits(self) -> Told:
        return self

    def refuse_rows(self, *_: Any) -> None: ...

    def tried(self, *_: Any, **__: Any) -> None: ...

    def open(self, **_: Any) -> Told:
        return self

    def check(self) -> None: ...

    def ensure_instance_id(self) -> str:
        return "mark"

    def claim(self, *_: Any) -> None:
        self.asked.append("claim")

    def apply(self, rows: pa.Table, _about: RowSchema, _checkpoint: str, order: str) -> int:
        self.asked.append((rows["id"].to_pylist(), order))
        return 0

    def close(self) -> None: ...


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("staged", [True, False])
def test_a_sink_that_is_told_so_writes_in_its_tasks_and_leaves_nothing_to_decide(
    store, batch_7, guarantee, staged
):
    target: Any = Told()
    sink = UpsertSink(target, ["id"], name="totals", staged=staged).bound(store)
    writer = outlet(sink, guarantee).opened(3, 1)
    writer.write(rows(id=["a", "b"]))
    assert target.asked == [], "nothing before the task has all its rows"
    work = writer.prepare("f" * 32)
    if staged and guarantee == "exactly_once":
        assert work is not None
        assert target.asked == []
    else:
        assert work is None
        assert target.asked == ["claim", (["a", "b"], f"{7:019d}{3:010d}")]
        assert SpilledRows(store, "totals").listed() == []


def test_outside_a_batch_no_key_is_made_up(store):
    with pytest.raises(DeliveryError, match="does not tell its task which batch"):
        WriteAheadSink(POST).bound(store).opened(0, 0)


def test_what_can_be_read_back_is_nothing(store):
    sinks: tuple[Any, ...] = (UpsertSink(TARGET, ["id"]), WriteAheadSink(POST))
    for sink in sinks:
        with pytest.raises(DeliveryError, match="Kept rows are never lost"):
            sink.delivered(None, [])


def test_it_travels_to_the_executors_and_tells_no_secret():
    options = {"aws_access_key_id": "a", "aws_secret_access_key": "hunter2", "aws_region": "eu"}
    store = CheckpointStore.open("s3://bucket/x", storage_options=options)
    for sink in (
        UpsertSink(TARGET, ["id"]).bound(store),
        WriteAheadSink(POST, reach={"password": "hunter2"}).bound(store),
    ):
        there = pickle.loads(pickle.dumps(sink))
        assert there == sink
        assert there.store.location == "s3://bucket/x"
        assert "hunter2" not in repr(there)


# --- Parts of a connection as text: what is odd in a password stays what it was -------------------


ODD = "p'w \\\\%40:@/?#é"


def test_an_odd_password_reaches_postgres_as_it_is():
    conninfo = pytest.importorskip("psycopg").conninfo
    told = {"host": "db", "port": 5432, "password": ODD}
    found = conninfo.conninfo_to_dict(as_text("postgres", told))
    assert found == {"host": "db", "port": "5432", "password": ODD}


def test_an_odd_password_reaches_mysql_as_it_is():
    told = {"host": "db", "user": "u@x", "password": ODD, "database": "a/b"}
    assert parts_of(as_text("mysql", told) or "") == {
        "host": "db",
        "port": 3306,
        "user": "u@x",
        "password": ODD,
        "database": "a/b",
    }


@pytest.mark.parametrize("how", [None, "", {}, 7, ["x"]])
def test_what_says_nothing_is_nothing(how):
    assert as_text("redis", how) is None


def test_a_url_is_a_url():
    assert as_text("redis", "redis://x") == as_text("redis", {"url": "redis://x"}) == "redis://x"


# --- Decided rows that can never be applied hold a pipeline up until a person gives them up -------


DELIVER = f"{__name__}:deliver"
REACH = {"orders": DELIVER}
DELIVERED: list[bytes] = []


def deliver(_token: str, rows: pa.Table) -> None:
    values = rows["value"].to_pylist()
    if b"poison" in values:
        raise ValueError("400 Bad Request")
    DELIVERED.extend(values)


def test_a_row_that_the_callable_never_takes_is_given_up_and_the_rest_delivered(tmp_path: Path):
    store = CheckpointStore.open(tmp_path / "checkpoint")
    store.put("metadata", b'{"id":"6a4cb5cf-5b5b-4b3e-9f0e-3f0d0b2b5c11"}')
    store.put(
        "offsets/0", b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\n{"in":{"0":3}}'
    )
    participant = made(store, "orders", DELIVER, None)
    members = participant.members
    claim(
        store,
        PipelineIdentity(id="0" * 32, participants=members, created_at_ms=0, created_by="test"),
    )
    participant.claim(owner_of(store))
    works = [
        keep(store, pa.table({"value": [each]}), kind="wal", task=task)
        for task, each in enumerate((b"poison", b"poison", b"good"))
    ]
    DecisionLog(store).record(decided(0, works=tuple(works), term=1))

    for _ in range(2):  # also where those that are refused come first
        with pytest.raises(DeliveryError, match="ValueError"):
            execute_recovery(store.location, reach=REACH, force=True)
    assert DELIVERED == [b"good"], "one that refuses costs the others nothing"

    found = shortfall(gather(store, participant), 0, open_too=True)
    assert (found.rows, found.delivered) == (2, 1)
    rulings.accept(
        store, 0, found.promise, missing=found.missing, ruled_by="ann", given_up=found.given_up
    )

    report = execute_recovery(store.location, reach=REACH, force=True)
    assert [(each.step.action, each.result) for each in report.results] == [
        (Action.ABORT, Result.DONE)
    ] * 2
    assert plan_recovery(store.location, reach=REACH).steps == ()
    assert participant.open() == ()
    assert DELIVERED == [b"good"]
