"""A driver's figures arrive at a real OTLP/HTTP receiver, and harm nobody where they do not."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import obstore.store
import pytest
from structlog.testing import capture_logs

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.watchdog_record import WatchdogRecord, note_look
from airflow_eos.core.delivery import exactly_once, source, start
from airflow_eos.core.delivery.batch import require_decidable
from airflow_eos.core.delivery.beats import BeatLoop
from airflow_eos.core.delivery.observed import (
    observed_participant,
    observed_store,
    observer_of,
    signals_wanted,
)
from airflow_eos.core.delivery.observer import (
    Careful,
    CommitResult,
    Decided,
    Event,
    Observer,
    TasksPrepared,
)
from airflow_eos.core.delivery.start_option import Start
from airflow_eos.core.protocol.decision import Outcome, PreparedWork
from airflow_eos.core.protocol.participant import Member
from airflow_eos.core.protocol.participant_group import ParticipantGroup
from airflow_eos.core.tally import RETRY_COUNTS
from airflow_eos.errors import KafkaUnavailableError, PromiseLostError
from airflow_eos.ops import figures as recorder
from airflow_eos.ops.figures import METRICS, lags
from tests.support.otlp import Receiver, attributes, otlp_receiver, process_that_sends_to
from tests.support.pipelines import abort_of
from tests.support.starts import begun
from tests.unit.core.delivery.fakes import FakeBroker, FakeParticipant
from tests.unit.ops.figures.scene import Scene

ROOT = Path(__file__).parents[4]
SEAL = abort_of(0, decided_by="driver", nonce="0" * 32)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with otlp_receiver() as one:
        yield one


@pytest.fixture
def send(receiver) -> Iterator[Callable[[], None]]:
    """What a process that is told to send there does as it exits."""
    with process_that_sends_to(receiver.address) as exit_now:
        yield exit_now


def timed_out(scene: Scene) -> None:
    """The broker ends what is prepared, before the driver has decided."""
    scene.sink.before_return = lambda: None
    for identity in scene.broker.open():
        scene.broker.end(identity, Outcome.ABORTED)


def lost_and_replayed(scene: Scene, observer: Observer | None, batch: int) -> None:
    scene.sink.before_return = lambda: timed_out(scene)
    with pytest.raises(PromiseLostError):
        scene.run(batch)
    scene.start(observer)
    scene.run(batch)


def left_open(scene: Scene, batch: int) -> None:
    """Decided, and the broker does not answer."""

    def away(_works: Any) -> Any:
        raise KafkaUnavailableError("no broker answers")

    scene.participant.commit = away  # type: ignore[method-assign, assignment]
    with pytest.raises(KafkaUnavailableError):
        scene.run(batch)


def counted(receiver: Receiver, name: str, **by: str) -> float:
    point = receiver.points(name)[tuple(sorted({"checkpoint": "ck", **by}.items()))]
    return float(point.as_int if point.HasField("as_int") else point.as_double)


def test_every_metric_of_the_table_arrives_at_a_receiver_and_no_other(receiver, send):
    observer = observer_of("ck")
    scene = Scene(observer)
    RETRY_COUNTS["kafka"] += 1
    scene.run(0)
    scene.run(1)
    lost_and_replayed(scene, observer, 2)
    left_open(scene, 3)
    note_look(scene.store, WatchdogRecord(dag_id="dog", run_id="r1", interval_ms=60_000))
    scene.heartbeat._beat()
    send()

    emitted = receiver.metrics()
    assert emitted.keys() == {each.name for each in METRICS}
    assert {(each.name, each.unit) for each in emitted.values()} == {
        (each.name, each.unit) for each in METRICS
    }
    for each in METRICS:
        for by in receiver.points(each.name):
            own = {name for name, _ in by} - {"checkpoint"}
            assert own == set(each.by), each.name
    assert counted(receiver, "eos.rows.delivered", participant="sink") == 9
    assert counted(receiver, "eos.rows.read") == 9
    assert counted(receiver, "eos.replays") == 1
    assert counted(receiver, "eos.rows.replayed") == 3
    assert counted(receiver, "eos.failures") == 2
    assert counted(receiver, "eos.lag", source="0") == 4
    assert counted(receiver, "eos.open_work") == 2
    assert 50 < counted(receiver, "eos.open_work.time_left") <= 60
    assert counted(receiver, "eos.decisions", verdict="commit", stands="True") == 5
    with pytest.raises(KeyError):  # the second source counts no rows
        counted(receiver, "eos.lag", source="1")


def test_a_partition_of_which_nothing_was_read_is_no_partition_without_a_lag():
    latest = {"in": {"0": 9, "1": 700}, "new": {"0": 50}}
    source = {"endOffset": {"in": {"0": 5}}, "latestOffset": latest}
    assert lags({"sources": [source]}) == {"0": 4 + 700 + 50}


def test_a_batch_is_one_trace_from_plan_to_commit_with_a_span_for_each_step(receiver, send):
    observer = observer_of("ck")
    scene = Scene(observer)
    scene.run(0)
    lost_and_replayed(scene, observer, 1)
    scene.heartbeat.stop("stopped")
    send()

    wholes = [span for span in receiver.spans() if span.name == "batch"]
    assert len({span.trace_id for span in wholes}) == len(wholes) == 3
    steps = [receiver.steps_of(whole) for whole in wholes]
    usual = ["plan", "look", "prepare", "decide", "settle"]
    assert [[part.name for part in parts] for parts in steps] == [
        [*usual, "commit"],
        ["look", "prepare", "decide", "settle"],  # it failed: Spark says nothing of it
        ["plan", "look", "settle", "prepare", "decide", "settle", "commit"],
    ]
    for whole, parts in zip(wholes, steps, strict=True):
        assert whole.start_time_unix_nano == parts[0].start_time_unix_nano
        assert whole.end_time_unix_nano == parts[-1].end_time_unix_nano
        for one, next_one in pairwise(parts):
            assert one.end_time_unix_nano == next_one.start_time_unix_nano
    assert attributes(wholes[0]).items() >= {"checkpoint": "ck", "eos.batch": "0"}.items()
    assert attributes(wholes[2]).items() >= {"eos.replay": "True", "eos.rows": "3"}.items()
    assert [whole.status.message for whole in wholes] == ["", "PromiseLostError", ""]
    commit = steps[0][-1]
    assert 50e6 < commit.end_time_unix_nano - commit.start_time_unix_nano < 30e9


def test_an_observer_that_raises_never_harms_a_batch():
    told = []

    def broken(event: Event) -> None:
        told.append(type(event).__name__)
        raise RuntimeError("a figure went wrong")

    with capture_logs() as logs:
        scene = Scene(Careful(broken))
        scene.run(0)
        scene.heartbeat.stop("stopped")
    assert scene.broker.visible() == ["a", "b", "c"]
    steps = {
        "Started",
        "StoreRequest",
        "Began",
        "Phased",
        "TasksPrepared",
        "Decided",
        "CommitResult",
        "QueryEnded",
    }
    assert steps <= set(told)
    assert [each["event"] for each in logs].count("figures_failed") == 1


def test_a_progress_that_nobody_understands_never_harms_a_batch(send):
    scene = Scene(observer_of("ck"))
    scene.run(0)
    scene.query.lastProgress = object()
    scene.run(1)
    assert scene.broker.visible() == ["a", "a", "b", "b", "c", "c"]


@pytest.mark.parametrize("answer", [None, 500])
def test_a_collector_that_is_away_holds_neither_a_batch_nor_the_end(monkeypatch, answer):
    """Seen on a real app: OpenTelemetry's own wait at the end took 20 s."""
    monkeypatch.setattr(recorder, "LAST_WORDS_S", 0.3)
    with otlp_receiver(answer or 200) as receiver:
        address = receiver.address if answer else "http://127.0.0.1:9"
        with process_that_sends_to(address) as exit_now:
            scene = Scene(observer_of("ck"))
            since = time.monotonic()
            scene.run(0)
            exit_now()
            assert time.monotonic() - since < 15
    assert scene.broker.visible() == ["a", "b", "c"]


def test_an_observed_store_travels_to_a_task_unobserved(send, tmp_path):
    """Sinks of tables, manifests and write-ahead logs carry it; an observer cannot be pickled."""
    observed = observed_store(CheckpointStore.open(tmp_path), observer_of("ck"))
    observed.put("eos/here", b"1")
    there = pickle.loads(pickle.dumps(observed))
    assert type(there) is CheckpointStore
    assert there.get("eos/here") == b"1"


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_query_is_observed_where_the_environment_asks_and_never_else(
    send, monkeypatch, tmp_path, is_asked
):
    if not is_asked:
        monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    given: list[Start] = []

    def guaranteed(found: Start, _after: int | None) -> Any:
        given.append(found)
        raise RuntimeError("far enough")

    monkeypatch.setattr(source, "check_sources", lambda *_: ())
    monkeypatch.setattr(start, "begin", guaranteed)
    df = MagicMock()
    df.sparkSession.sparkContext = SimpleNamespace(
        applicationId="local-1", master="local", uiWebUrl=None
    )
    df.sparkSession.conf.get.return_value = "client"
    with pytest.raises(RuntimeError, match="far enough"):
        start.start_exactly_once(df, MagicMock(), checkpoint_location=f"file://{tmp_path}")
    (found,) = given
    assert (found.observer is not None) == is_asked
    assert (found.heartbeat.observer is not None) == is_asked
    assert (type(found.store) is not CheckpointStore) == is_asked


def test_what_a_batch_is_given_tells_of_its_decisions_and_its_work(monkeypatch):
    told: list[Event] = []
    broker, store = FakeBroker(), CheckpointStore(obstore.store.MemoryStore(), "ck")
    taken = MagicMock(store=store), 2
    for name in ("take_over", "retained_batches"):
        monkeypatch.setattr(exactly_once, name, lambda *_, **__: taken)
    heartbeat: Any = SimpleNamespace(observer=told.append, start=lambda _: None, enter_phase=None)
    sink: Any = MagicMock(guarantee="exactly_once", connect=lambda _: FakeParticipant(broker))
    batch = begun(MagicMock(), sink, store, heartbeat)
    batch._participant.open()
    batch._participant.commit([])
    batch._attempts._decisions.record(SEAL)
    assert [type(event) for event in told] == [TasksPrepared, CommitResult, Decided]


def test_what_is_asked_before_a_promise_is_asked_of_each_output_beside_figures_too():
    """Who tells the figures stands before the group, and is no group by its class."""
    asked: list[Any] = []
    outputs: list[Any] = [FakeParticipant(FakeBroker()) for _ in "ab"]
    works = [PreparedWork("fake", name, f"{name}1", 1, "0" * 32, 0, None, {}) for name in "ab"]
    for name, each in zip("ab", outputs, strict=True):
        each.members = (Member(name, "fake", {"at": name}),)
        each.require_decidable = asked.append
    require_decidable(observed_participant(ParticipantGroup(outputs), lambda _: None), works)
    assert asked == [[work] for work in works]


def test_without_settings_nothing_is_imported_and_nothing_is_wrapped():
    """In a process of its own: others of this one have imported OpenTelemetry."""
    program = (
        "import sys, airflow_eos.core.delivery.start, airflow_eos.core.delivery.observed as f\n"
        "from airflow_eos.core.checkpoint import CheckpointStore, DecisionLog\n"
        "import obstore.store\n"
        "store = CheckpointStore(obstore.store.MemoryStore(), 'ck')\n"
        "assert f.observer_of('ck', {}) is None\n"
        "assert f.observed_store(store, None) is store\n"
        "assert type(f.observed_decisions(store, None)) is DecisionLog\n"
        "assert f.observed_participant(store, None) is store\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "[]"


def test_without_the_extra_the_pipeline_starts_and_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "airflow_eos.ops.figures", None)
    with capture_logs() as logs:
        assert observer_of("ck", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}) is None
    assert "airflow-provider-eos[otel]" in logs[0]["hint"]


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({}, set()),
        ({"OTEL_SERVICE_NAME": "orders"}, set()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, {"metrics", "traces"}),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, {"traces"}),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"},
            {"metrics"},
        ),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "True"}, set()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, set()),
    ],
)
def test_what_is_sent_is_said_by_opentelemetrys_own_variables(env, wanted):
    assert signals_wanted(env) == wanted


def test_what_an_alert_counts_begins_at_0_or_prometheus_would_not_see_the_first(receiver, send):
    observer_of("ck")
    send()
    for name in ("eos.failures", "eos.replays", "eos.rows.replayed", "eos.rows.read"):
        assert counted(receiver, name) == 0
    assert counted(receiver, "eos.decisions", verdict="commit", stands="False") == 0


def test_a_driver_that_stands_by_is_no_running_one(receiver, send):
    """Its 1 was the last word of a pipeline that a person had drained: a page for a week."""
    observer_of("ck")
    send()
    assert counted(receiver, "eos.failures") == 0
    assert not receiver.points("eos.running")
    store = CheckpointStore(obstore.store.MemoryStore(), "ck")
    told: list[Event] = []
    heartbeat = BeatLoop(
        store, application_id="app", trigger=timedelta(seconds=1), observer=told.append
    )
    for _ in range(2):  # once the term is taken, and before Spark's query
        heartbeat.start(1)
    heartbeat.stop("stopped")
    assert [type(each).__name__ for each in told] == ["Started", "QueryEnded"]


def test_a_query_that_has_ended_has_no_gauges_any_more(receiver, send):
    scene = Scene(observer_of("ck"))
    scene.run(0)
    scene.heartbeat.stop("stopped")
    send()
    assert counted(receiver, "eos.rows.delivered", participant="sink") == 3
    assert not receiver.points("eos.batch.age")
