"""Rows that are kept in the checkpoint until readers have them: written again as they were.

With real Spark and Kafka: ``tests/integration/kinds/test_kept_rows.py``.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.decisions import PerishableRows
from airflow_eos.core.delivery import replay
from airflow_eos.core.delivery import spill as keeping
from airflow_eos.core.delivery.outputs import Outputs
from airflow_eos.core.delivery.port import TaskReport
from airflow_eos.core.delivery.replay import keys_of_missing
from airflow_eos.core.delivery.spill import SpillingSink
from airflow_eos.core.protocol.decision import Outcome, PreparedWork
from airflow_eos.core.protocol.promise import Promise
from airflow_eos.errors import (
    ConfigurationError,
    DeliveryError,
    NonDeterministicReplayError,
    StoreError,
    SupersededError,
)
from airflow_eos.kinds.spill import task
from airflow_eos.kinds.upsert.sink import RedisUpsert
from airflow_eos.kinds.wal.sink import WriteAheadSink
from airflow_eos.sinks import FileSink, KafkaSink, Output, UpsertSink
from tests.support.authority import authority_of
from tests.support.pipelines import commit_of
from tests.unit.core.delivery.driving import commits, decision_log
from tests.unit.core.delivery.fakes import FakeFrame
from tests.unit.core.delivery.test_batch import (
    ALL,
    ROWS_OF_BOTH,
    Both,
    KilledError,
    driver_of_both,
    killed_with_both,
)

KAFKA = KafkaSink("unused:9092", topic="out", transactional_id_prefix="etl")
OTHERS = FakeFrame(["a", "x"], [], ["y"])
"""What the batch gives where it is evaluated again."""


class BothAndKept(Both):
    """``orders`` keeps what its tasks prepare, as :class:`SpillingSink` does with Arrow."""

    def __init__(self, kept: PerishableRows) -> None:
        super().__init__()
        self.kept = kept
        self.writes = self.sinks["orders"].prepare
        self.sinks["orders"].prepare = self._kept  # type: ignore[method-assign]

    def _kept(self, rows: Any, *, only: Collection[int] | None = None) -> list[TaskReport]:
        reports = self.writes(rows, only=only)
        for report in reports:
            if report.work is not None:
                stream = msgspec.json.encode(rows.tasks[report.task])
                self.kept.keep("orders", 0, report.work.key, stream)
        return reports


@pytest.fixture
def log() -> Any:
    return decision_log()


@pytest.fixture
def kept(log: Any) -> PerishableRows:
    return PerishableRows(log._store, ["orders"])


@pytest.fixture
def both(kept: PerishableRows, monkeypatch: pytest.MonkeyPatch) -> BothAndKept:
    def read(_like: Any, kept: PerishableRows, name: str, batch: int, keys: Any) -> FakeFrame:
        return FakeFrame(*[msgspec.json.decode(kept.read(name, batch, key)) for key in keys])

    monkeypatch.setattr(replay, "kept_rows", read)
    return BothAndKept(kept)


def driver(both: Both, log: Any, kept: PerishableRows | None) -> Any:
    """As ``ExactlyOnce.batch`` makes it."""

    def on_phase(batch: int, phase: str) -> None:
        if kept is not None and phase == "waiting":
            kept.prune(batch)

    return driver_of_both(both, log, on_phase, kept)


def promised_and_split(both: Both, log: Any, kept: Any, *, lost: int | None = None) -> None:
    """The decision stands, ``totals`` has its rows, and ``orders`` has lost work."""
    died = driver(both, log, kept)
    died._settle = killed_with_both
    with pytest.raises(KilledError):
        died(ROWS_OF_BOTH, 0)
    orders, totals = both.brokers.values()
    for identity in totals.open():
        totals.end(identity, Outcome.COMMITTED)
    for number, identity in enumerate(orders.open()):
        is_lost = lost is None or number == lost
        orders.end(identity, Outcome.ABORTED if is_lost else Outcome.COMMITTED)


def test_without_them_another_evaluation_splits_the_outcomes_for_ever(both, log):
    promised_and_split(both, log, None)
    with pytest.raises(NonDeterministicReplayError):
        driver(both, log, None)(OTHERS, 0)
    assert both.visible() == {"orders": [], "totals": ALL["totals"]}


def test_rows_that_were_lost_are_written_as_they_were_promised(both, log, kept):
    promised_and_split(both, log, kept)
    again = FakeFrame(*OTHERS.tasks)
    driver(both, log, kept)(again, 0)
    assert both.visible() == ALL
    assert again.evaluations == 1, "for Spark's state"
    assert kept.keys("orders", 0) == frozenset()


@pytest.mark.parametrize("lost", [0, 1])
def test_only_what_was_lost_is_written_again(both, log, kept, lost):
    promised_and_split(both, log, kept, lost=lost)
    driver(both, log, kept)(OTHERS, 0)
    assert both.visible() == ALL
    [work] = commits(log)[1].works
    assert work.content == commits(log)[0].works[lost].content


def test_a_replay_of_them_that_is_lost_as_well_is_replayed_again(both, log, kept):
    promised_and_split(both, log, kept)
    for _ in range(2):
        died = driver(both, log, kept)
        died._settle = killed_with_both
        with pytest.raises(KilledError):
            died(OTHERS, 0)
        for identity in both.brokers["orders"].open():
            both.brokers["orders"].end(identity, Outcome.ABORTED)
    driver(both, log, kept)(OTHERS, 0)
    assert both.visible() == ALL
    assert len(commits(log)) == 4
    assert kept.keys("orders", 0) == frozenset()


def test_kept_rows_that_are_not_the_promised_ones_are_never_shown(both, log, kept):
    promised_and_split(both, log, kept)
    key = commits(log)[0].works[0].key
    log._store.put(f"eos/kept/orders/perishable/0/{key}", msgspec.json.encode(["a", "z"]))
    with pytest.raises(NonDeterministicReplayError):
        driver(both, log, kept)(OTHERS, 0)
    assert both.visible() == {"orders": [], "totals": ALL["totals"]}
    assert both.brokers["orders"].open() == []


def test_where_not_all_is_kept_the_evaluation_counts(both, log, kept):
    """As of a promise made before ``keep_rows`` was said."""
    promised_and_split(both, log, kept)
    kept.remove(kept.listed(0)[:1])
    with pytest.raises(NonDeterministicReplayError):
        driver(both, log, kept)(OTHERS, 0)
    driver(both, log, kept)(ROWS_OF_BOTH, 0)
    assert both.visible() == ALL


def test_what_a_killed_attempt_has_kept_goes_before_the_next_one_prepares(both, log, kept):
    """In a loop of crashes the checkpoint would grow by a batch each time."""
    died = driver(both, log, kept)
    died._decide = killed_with_both
    with pytest.raises(KilledError):
        died(ROWS_OF_BOTH, 0)
    [former] = [kept.keys("orders", 0)]
    assert len(former) == 2
    again = driver(both, log, kept)
    again._decide = killed_with_both
    with pytest.raises(KilledError):
        again(ROWS_OF_BOTH, 0)
    assert len(kept.keys("orders", 0)) == 2
    assert not kept.keys("orders", 0) & former
    driver(both, log, kept)(ROWS_OF_BOTH, 0)
    assert kept.keys("orders", 0) == frozenset()


def test_what_a_newer_driver_keeps_while_we_look_is_left_to_it(both, log, kept):
    """It has promised it perhaps: a list that is made after the look would have it."""
    ours = driver(both, log, kept)
    begin = ours._authority.begin

    def slept(batch: int) -> str:
        content: str = begin(batch)  # we are the newest, and then sleep
        kept.keep("orders", batch, "etl-0-0-9-9", b"theirs")
        return content

    ours._authority.begin = slept
    ours._attempts.begin(0)
    assert kept.keys("orders", 0) == {"etl-0-0-9-9"}


def test_who_is_superseded_removes_nothing(both, log, kept):
    died = driver(both, log, kept)
    died._decide = killed_with_both
    with pytest.raises(KilledError):
        died(ROWS_OF_BOTH, 0)
    sleeper = driver(both, log, kept)
    authority_of(log._store, log)  # a newer driver
    with pytest.raises(SupersededError):
        sleeper(ROWS_OF_BOTH, 0)
    assert len(kept.keys("orders", 0)) == 2


# --- which of them are what is missing


def work(key: str, rows: int, content: str) -> PreparedWork:
    return PreparedWork("kafka", "orders", key, rows, content * 32, 0, 1, {})


def promise(*commits: Collection[PreparedWork]) -> Promise:
    return Promise(
        7,
        tuple(
            commit_of(7, *works, attempt=attempt, nonce="a" * 32)
            for attempt, works in enumerate(commits, start=1)
        ),
    )


A, B, C = work("a", 2, "a"), work("b", 3, "b"), work("c", 2, "a")
COMMITTED, ABORTED = Outcome.COMMITTED, Outcome.ABORTED


def keys(promised: Promise, committed: Collection[PreparedWork], kept: Collection[str]) -> Any:
    outcomes = {
        each.identity: COMMITTED if each in committed else ABORTED for each in promised.works
    }
    return keys_of_missing(promised, outcomes, kept)


def test_what_is_missing_comes_in_the_order_of_the_tasks():
    assert keys(promise([B, A, C]), [], {"a", "b", "c"}) == ["b", "a", "c"]


def test_what_is_delivered_is_not_missing_and_equal_contents_pair_one_to_one():
    assert keys(promise([A, B, C]), [A], {"a", "b", "c"}) == ["b", "c"]


def test_a_replay_of_equal_content_stands_for_what_it_replays():
    again = work("again", 3, "b")
    assert keys(promise([A, B], [again]), [A], {"again"}) == ["again"]
    assert keys(promise([A, B], [again]), [A, again], {"again"}) == []


def test_a_lost_replay_that_kept_nothing_is_made_of_what_its_promise_kept():
    assert keys(promise([A, B], [work("again", 3, "b")]), [A], {"a", "b"}) == ["b"]


def test_what_is_not_all_kept_is_not_taken_from_there():
    assert keys(promise([A, B]), [], {"a"}) == []


def test_what_was_delivered_under_another_cut_is_not_paired():
    assert keys(promise([A, B], [work("other", 5, "d")]), [work("other", 5, "d")], {"a"}) == []


# --- the sink around another one


class Inner:
    """A sink and its writer at once; tells what was asked of it."""

    name = "orders"
    perishable = True

    def __init__(self, prepared: PreparedWork | None = A) -> None:
        self.asked: list[Any] = []
        self.prepared = prepared

    def opened(self, task: int, task_attempt: int, *, transactional: bool = True) -> Inner:
        self.asked.append((task, task_attempt, transactional))
        return self

    def write(self, rows: pa.RecordBatch) -> None:
        self.asked.append(rows.num_rows)

    def prepare(self, fingerprint: str) -> PreparedWork | None:
        self.asked.append(fingerprint)
        return self.prepared

    def abort(self) -> None:
        self.asked.append("abort")


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore.open(tmp_path)


@pytest.fixture
def batch_7(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Spark tells its tasks; that it does is seen in the crash tests."""
    monkeypatch.setattr(keeping, "running_batch", lambda: 7)


def rows(*values: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": list(values)})


def test_rows_are_kept_under_the_key_of_the_work_once_it_is_prepared(store, batch_7):
    inner = Inner()
    writer = SpillingSink(inner, store).opened(3, 1)  # type: ignore[arg-type]
    writer.write(rows("x", "y"))
    writer.write(rows("z"))
    assert PerishableRows(store).keys("orders", 7) == frozenset(), "nothing before it is whole"
    assert writer.prepare("f" * 32) == A
    stream = PerishableRows(store).read("orders", 7, A.key)
    assert pa.ipc.open_stream(stream).read_all()["value"].to_pylist() == ["x", "y", "z"]
    assert inner.asked == [(3, 1, True), 2, 1, "f" * 32]


def test_rows_that_cannot_be_kept_are_not_promised(store, batch_7):
    """Their work is aborted by the task, as of any error of its writer."""
    writer = SpillingSink(Inner(), store).opened(0, 0)  # type: ignore[arg-type]
    writer.write(rows("x"))
    PerishableRows(store).keep("orders", 7, A.key, b"others")
    with pytest.raises(Exception, match="a key came twice"):
        writer.prepare("f" * 32)


def test_a_task_without_rows_keeps_nothing(store, batch_7):
    assert SpillingSink(Inner(None), store).opened(0, 0).prepare("0" * 32) is None  # type: ignore[arg-type]
    given_up = Inner()
    writer = SpillingSink(given_up, store).opened(0, 0)  # type: ignore[arg-type]
    writer.write(rows("x"))
    writer.abort()
    assert given_up.asked[-1] == "abort"
    assert PerishableRows(store).keys("orders", 7) == frozenset()


def test_what_is_visible_at_once_is_not_kept(store):
    inner: Any = Inner()
    assert SpillingSink(inner, store).opened(0, 0, transactional=False) is inner


def test_it_travels_to_the_executors_and_tells_no_secret():
    options = {"aws_access_key_id": "a", "aws_secret_access_key": "hunter2", "aws_region": "eu"}
    there = pickle.loads(
        pickle.dumps(
            Output("orders", replace(KAFKA, two_phase=False), keep_rows=True).bound(
                CheckpointStore.open("s3://bucket/x", storage_options=options)
            )
        )
    )
    assert isinstance(there.sink, SpillingSink)
    assert there.sink.store.location == "s3://bucket/x"
    assert "hunter2" not in repr(there)


# --- what is said of an output


def test_an_output_that_keeps_is_wrapped_where_it_is_bound(store):
    outputs = Outputs(
        (Output("orders", KAFKA, keep_rows=True), Output("lake", FileSink("/lake")))
    ).bound(store)
    assert outputs.keeping == ("orders",)
    assert [isinstance(each.sink, SpillingSink) for each in outputs.outputs] == [True, False]
    assert outputs.names == ("orders", "lake")


def test_what_nothing_ends_but_a_decision_is_not_kept():
    with pytest.raises(ConfigurationError, match=r"Output 'lake': keep_rows is for .*FileSink"):
        Output("lake", FileSink("/lake"), keep_rows=True)


def test_rows_are_not_seen_before_a_decision_that_shows_those_of_others_too():
    early = UpsertSink(RedisUpsert("redis://unused", "t:"), ["id"], staged=False)
    with pytest.raises(ConfigurationError, match=r"'totals': staged=False .*found 2 outputs"):
        Outputs((Output("totals", early), Output("lake", FileSink("/lake"))))
    assert Outputs((Output("totals", early),)).names == ("totals",)


def test_a_task_keeps_no_rows_on_a_machine_that_lacks_the_disk_of_the_checkpoint(
    tmp_path, monkeypatch
):
    """Kept there in silence, they were promised, and the driver that delivers them found none."""
    monkeypatch.setattr("airflow_eos.kinds.spill.task.running_batch", lambda: 7)
    mount = tmp_path / "mount"
    mount.mkdir()
    sink = WriteAheadSink("json:loads").bound(CheckpointStore.open(mount / "checkpoint"))
    writer = sink.opened(0, 0)
    writer.write(pa.RecordBatch.from_pydict({"value": ["x"]}))
    with pytest.raises(StoreError, match="Is the disk mounted here, as on the driver and every"):
        writer.prepare("0" * 32)
    writer.abort()
    assert list(mount.iterdir()) == []
    (mount / "checkpoint").mkdir()
    writer = sink.opened(0, 1)
    writer.write(pa.RecordBatch.from_pydict({"value": ["x"]}))
    assert writer.prepare("0" * 32) is not None


def test_rows_beside_prepared_ones_are_kept_on_no_machine_that_lacks_the_disk(tmp_path, batch_7):
    writer = SpillingSink(Inner(), CheckpointStore.open(tmp_path / "checkpoint")).opened(0, 0)  # type: ignore[arg-type]
    writer.write(rows("x"))
    with pytest.raises(StoreError, match="Is the disk mounted here, as on the driver and every"):
        writer.prepare("f" * 32)
    assert list(tmp_path.iterdir()) == []


def test_a_text_that_is_no_utf8_is_refused_before_a_function_is_promised_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Python would raise an error of its own at each delivery, after the decision."""
    monkeypatch.setattr(task, "running_batch", lambda: 0)
    store = CheckpointStore.open(tmp_path)
    writer = WriteAheadSink("os:getcwd", store=store).opened(0, 0)
    made = pa.array([b"caf\xe9"], pa.binary())
    text = pa.StringArray.from_buffers(1, *made.buffers()[1:])
    with pytest.raises(DeliveryError, match="column v is not UTF-8"):
        writer.write(pa.RecordBatch.from_arrays([text], ["v"]))
