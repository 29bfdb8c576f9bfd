"""A start: refused, called off, in which order it takes over, and where it begins."""

from __future__ import annotations

import json
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import obstore.store
import pyarrow as pa
import pytest
from msgspec import structs
from pyspark.sql.pandas import types
from pyspark.sql.types import StructType

from airflow_eos.core.checkpoint import (
    CheckpointStore,
    Decision,
    DecisionLog,
    OffsetLog,
    StartedBy,
    Verdict,
    newest_term,
    request_drain,
    take_term,
)
from airflow_eos.core.checkpoint.backend import SPENT, drain_path
from airflow_eos.core.checkpoint.heartbeat import BY_AIRFLOW, STARTED_BY, read_heartbeat
from airflow_eos.core.delivery import start, takeover
from airflow_eos.core.delivery import start as module
from airflow_eos.core.delivery.batch import Authority
from airflow_eos.core.delivery.port import Former
from airflow_eos.core.delivery.spark_session import namespace
from airflow_eos.core.delivery.start import make_batch_function
from airflow_eos.core.delivery.start_position import StartPosition
from airflow_eos.core.delivery.task import in_arrow
from airflow_eos.core.delivery.weaker_guarantees import AtLeastOnceBatch
from airflow_eos.core.protocol.decision import PreparedWork, encode
from airflow_eos.core.protocol.participant import Member, Note, Owner, Ownership
from airflow_eos.errors import (
    CalledOffError,
    CheckpointFormatError,
    ConfigurationError,
    OwnershipError,
    SupersededError,
)
from tests.support.authority import OFFSETS, authority_of
from tests.support.pipelines import commit_of, kafka_member
from tests.unit.core.delivery.driving import decision_log, driver
from tests.unit.core.delivery.fakes import FakeBroker, FakeFrame, FakeSink
from tests.unit.ops.supervision.lives import drain, started


def test_the_last_heartbeat_of_a_query_that_spark_refused_is_no_sign_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    df = MagicMock()
    df.sparkSession.sparkContext = SimpleNamespace(applicationId="local-1", master="local")
    df.sparkSession.conf.get.return_value = "client"
    writer = df.writeStream.outputMode.return_value.foreachBatch.return_value
    started = writer.option.return_value.trigger.return_value.start
    started.side_effect = RuntimeError("Spark refuses")
    monkeypatch.setattr(start, "check_sources", lambda *_: ())
    monkeypatch.setattr(
        start, "make_batch_function", lambda *_: MagicMock(streamed=lambda rows: rows)
    )
    with pytest.raises(RuntimeError, match="Spark refuses"):
        start.start_exactly_once(
            df,
            MagicMock(),
            checkpoint_location=f"file://{tmp_path}",
            trigger={"availableNow": True},
        )
    beat = read_heartbeat(CheckpointStore.open(f"file://{tmp_path}"))
    assert beat is not None
    assert (beat.phase, beat.end, beat.reason) == (
        "failed",
        "failed",
        "RuntimeError: see the driver's log",
    )


def test_what_spark_would_refuse_is_refused_before_anything_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The term stops whoever runs now. With real Spark: test_refused_before_the_term.py."""
    df = MagicMock()
    running = SimpleNamespace(name="healthy")
    df.selectExpr.return_value.sparkSession.streams.active = [running]
    take = MagicMock()
    monkeypatch.setattr(start, "make_batch_function", take)
    with pytest.raises(ConfigurationError, match="name 'healthy' is running"):
        start.start_exactly_once(
            df, MagicMock(), checkpoint_location=f"file://{tmp_path}", query_name="healthy"
        )
    take.assert_not_called()


def test_what_a_sink_refuses_is_refused_before_anything_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An output topic that is missing, a driver that is not installed."""
    sink = MagicMock()
    sink.bound.return_value.check.side_effect = ConfigurationError("no driver here")
    df = MagicMock()
    df.selectExpr.return_value.sparkSession.streams.active = []
    take = MagicMock()
    monkeypatch.setattr(start, "make_batch_function", take)
    with pytest.raises(ConfigurationError, match="no driver here"):
        start.start_exactly_once(df, sink, checkpoint_location=f"file://{tmp_path}")
    take.assert_not_called()


_OFFSETS = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":7}\n{}'


@pytest.mark.parametrize("verdict", list(Verdict))
def test_a_promise_is_not_written_at_once_by_another_guarantee(
    tmp_path: Path, verdict: Verdict
) -> None:
    """A part of it may be visible, and a recovery can commit the rest at any later time."""
    store = CheckpointStore.open(tmp_path)
    store.put("offsets/0", _OFFSETS.encode())
    work = PreparedWork("kafka", "sink", "etl-0-0-7-3", 2, "0" * 32, 1_000, 60_000, {})
    DecisionLog(store).record(
        Decision(
            batch_id=0,
            attempt=1,
            verdict=verdict,
            works=(work,) if verdict is Verdict.COMMIT else (),
            offsets=_OFFSETS if verdict is Verdict.COMMIT else "",
            decided_by="driver 1",
            decided_at_ms=1,
            nonce="0" * 32,
            reason="" if verdict is Verdict.COMMIT else "a task failed",
        )
    )

    def begin() -> Any:
        sink = MagicMock(guarantee="at_least_once")
        return make_batch_function(MagicMock(), sink, store, *([MagicMock()] * 5))

    if verdict is Verdict.COMMIT:
        with pytest.raises(OwnershipError, match="Start once more with exactly_once"):
            begin()
        store.put("commits/0", b"v1\n{}")  # Spark has seen it through
    assert isinstance(begin(), AtLeastOnceBatch)


@pytest.mark.parametrize("may_be_visible", [False, True])
def test_topics_are_watched_at_most_once_as_well(tmp_path: Path, may_be_visible: bool) -> None:
    """One that was made again would be read on, from offsets that mean other rows."""
    store = CheckpointStore.open(tmp_path)
    if may_be_visible:
        store.put("offsets/0", _OFFSETS.encode())
        store.create(f"{SPENT}/0/mark", b"1")
    watched = MagicMock()
    sink = MagicMock(guarantee="at_most_once")
    batch: Any = make_batch_function(
        MagicMock(), sink, store, lambda _: watched, timedelta(), *([MagicMock()] * 3)
    )
    store.put("offsets/0", _OFFSETS.encode())  # Spark has planned the batch
    batch(MagicMock(), 0)
    assert watched.prepare.called


@pytest.mark.parametrize("guarantee", ["at_least_once", "at_most_once"])
def test_where_the_first_batch_began_is_lost_for_every_guarantee(tmp_path: Path, guarantee) -> None:
    store = CheckpointStore.open(tmp_path)
    store.put("offsets/0", _OFFSETS.encode())
    store.put("sources/0/0", b"")
    heartbeat = MagicMock()
    with pytest.raises(CheckpointFormatError, match="where the first batch began is lost"):
        make_batch_function(
            MagicMock(),
            MagicMock(guarantee=guarantee),
            store,
            MagicMock(),
            timedelta(),
            heartbeat,
            *([MagicMock()] * 2),
        )
    assert not heartbeat.start.called


# --- called off -----------------------------------------------------------------------------------
# A start that was given up while its cluster let it wait comes up late, and finds another one.


GUARANTEES = ("exactly_once", "at_most_once", "at_least_once")
GIVEN_UP: dict[str, Any] = {"requested_by": BY_AIRFLOW, "reason": "it was given up: NEVER_SEEN"}


@pytest.fixture
def store(tmp_path) -> CheckpointStore:
    store = CheckpointStore.open(tmp_path)
    take_term(store, taken_by="the start that took its place")
    return store


@pytest.fixture
def begin(store, monkeypatch):
    """Begin as this start; returns what was taken."""
    taken: list[str] = []
    driver = SimpleNamespace(
        start=lambda _: taken.append("the heartbeat"), mark=None, observer=None
    )
    monkeypatch.setattr(module, "_reached", lambda *_: MagicMock())

    def take_over(*_: Any, **__: Any) -> Any:
        taken.append("the claim")
        return MagicMock(), MagicMock()

    monkeypatch.setattr(module, "take_over", take_over)
    monkeypatch.setattr(module, "retained_batches", lambda _: 2)

    def made(guarantee: str, us: StartedBy | None) -> list[str]:
        if us is not None:
            monkeypatch.setenv(STARTED_BY, us.as_text())
        sink, governed = MagicMock(guarantee=guarantee), MagicMock()
        with ExitStack() as resources:
            given: tuple[Any, ...] = (governed, MagicMock(), driver, MagicMock(), resources)
            module.make_batch_function(MagicMock(), sink, store, *given)
        return taken

    made.taken = taken  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_start_that_was_given_up_takes_nothing_from_the_driver_that_runs(store, begin, guarantee):
    request_drain(store, submission="s1", **GIVEN_UP)
    with pytest.raises(CalledOffError, match=r"airflow has asked.*given up.*Nothing was begun"):
        begin(guarantee, started("s1"))
    assert newest_term(store) == 1
    assert begin.taken == []


def test_a_request_to_this_very_start_that_cannot_be_read_is_no_leave_to_begin(store, begin):
    """Nobody but who has given this start up writes there, and has mostly started another."""
    store.put(drain_path("s1"), b'{"format_ver')
    with pytest.raises(CheckpointFormatError, match=r"drains/s1\.json cannot be read"):
        begin("exactly_once", started("s1"))
    assert newest_term(store) == 1
    assert begin.taken == []


def test_so_does_one_that_a_former_release_has_asked(store, begin):
    store.put("eos/drain.json", encode(drain(submission="s1")))
    with pytest.raises(CalledOffError):
        begin("at_most_once", started("s1"))
    assert newest_term(store) == 1


@pytest.mark.parametrize("named", [{}, {"term": 1}, {"submission": "s0"}], ids=str)
@pytest.mark.parametrize("us", [started("s1"), None], ids=["by Airflow", "by hand"])
def test_what_was_asked_of_others_keeps_no_start_from_beginning(store, begin, named, us):
    request_drain(store, requested_by="ops", reason="a release", **named)
    assert begin("at_most_once", us) == ["the heartbeat"]
    assert newest_term(store) == 2


def test_one_that_was_asked_is_found_also_behind_a_request_to_whoever_runs(store, begin):
    request_drain(store, submission="s1", **GIVEN_UP)
    request_drain(store, requested_by="ops", reason="a release")
    with pytest.raises(CalledOffError):
        begin("exactly_once", started("s1"))


# --- Where a first start begins: what a person may say, and what Spark is told --------------------


@pytest.mark.parametrize("name", ["earliest", "latest"])
def test_the_ends_of_a_topic(name):
    assert StartPosition.parsed(name).source_options("in") == {"startingOffsets": name}


def test_a_moment_in_any_zone():
    position = StartPosition.parsed("2026-11-23T11:00:00+01:00")
    assert position == StartPosition.at(datetime(2026, 11, 23, 10, tzinfo=UTC))
    options = position.source_options("in")
    assert options["startingTimestamp"] == "1795428000000"
    assert options["startingOffsetsByTimestampStrategy"] == "latest"


def test_the_offset_of_each_partition():
    position = StartPosition.parsed('{"0": 1500, "1": 0}')
    assert position == StartPosition.offsets({0: 1500, 1: 0})
    told = json.loads(position.source_options("in")["startingOffsets"])
    assert told == {"in": {"0": 1500, "1": 0}}


@pytest.mark.parametrize(
    "text",
    [
        *("", "group", "beginning", "2026-11-23T10:00:00", "{}"),
        *('{"0": -1}', '{"a": 1}', '{"0": null}', '{"0": {"1": 2}}', '{"0": "1500"}', "{"),
    ],
)
def test_anything_else_is_refused_by_name(text):
    with pytest.raises(ConfigurationError, match="expected earliest, latest"):
        StartPosition.parsed(text)


@pytest.mark.parametrize(
    "text",
    [
        *('{"0": 1500.7}', '{"0": 1500.0}', '{"0": true}', '{"0": 9223372036854775808}'),
        *('{"0": 1, "0": 2}', '{"0": 1, "00": 2}', '{"1_0": 1}', '{" 0": 1}'),
    ],
)
def test_what_only_looks_like_an_offset_begins_nowhere(text):
    """Cut to 1500, or to 1, the first start would deliver rows that were to be left out."""
    with pytest.raises(ConfigurationError, match="the offset of each partition as JSON"):
        StartPosition.parsed(text)


def test_an_offset_that_an_app_computes_is_a_whole_number_too():
    for odd in (1500.7, True, None, "1500"):
        with pytest.raises(ConfigurationError, match="expected earliest, latest"):
            StartPosition.offsets({0: odd})  # type: ignore[dict-item]


# --- When a driver asks whether it may go on, and in which order a start takes over ---------------


OTHER = OFFSETS.replace('"0":1', '"0":2')


@pytest.fixture
def ordered_store() -> CheckpointStore:
    return CheckpointStore(obstore.store.MemoryStore(), "memory")


def decided(batch: int = 0, offsets: str = OFFSETS) -> Decision:
    return commit_of(batch, offsets=offsets, decided_by="driver 1", nonce="a" * 32)


def test_a_superseded_driver_runs_no_task(ordered_store: CheckpointStore) -> None:
    """Its tasks would overwrite Spark's state files."""
    authority = authority_of(ordered_store, DecisionLog(ordered_store))
    take_term(ordered_store, taken_by="another")
    with pytest.raises(SupersededError):
        authority.begin(0)


def test_the_first_batch_of_a_run_looks_at_the_entry_before(ordered_store: CheckpointStore) -> None:
    """A late rename came between our repair and Spark's reading: Spark began somewhere else."""
    log = DecisionLog(ordered_store)
    assert log.record(decided(4))
    authority = authority_of(ordered_store, log)
    ordered_store.put("offsets/4", OTHER.encode())
    with pytest.raises(SupersededError, match="is not what batch 4 was delivered with"):
        authority.begin(5)


def test_a_note_is_acknowledged_before_the_look(ordered_store: CheckpointStore) -> None:
    """Whoever takes a term after our look reads the notes after that."""
    asked: list[str] = []

    class Notes:
        def note(self, _decision: Decision, _owner: Owner) -> None:
            asked.append(f"noted, newest term {newest_term(ordered_store)}")
            take_term(ordered_store, taken_by="another")

    ordered_store.put("offsets/0", OFFSETS.encode())
    log = DecisionLog(ordered_store)
    authority = Authority(
        take_term(ordered_store, taken_by="we"),
        OffsetLog(ordered_store, log),
        Notes(),
        evaluated_at=lambda _batch: 7,
    )
    with pytest.raises(SupersededError):
        authority.confirm(decided())
    assert asked == ["noted, newest term 1"]


def test_a_promise_for_another_range_is_not_kept_with_ours() -> None:
    """Found by the model: a driver that was superseded had decided a number that we plan later."""
    broker = FakeBroker()
    log = decision_log()
    running = driver(FakeSink(broker), broker, log)
    running(FakeFrame(["a"]), 0)
    log._store.put("offsets/1", OFFSETS.encode())
    assert log.record(decided(1, offsets=OTHER))
    with pytest.raises(SupersededError, match="promised for another range"):
        running(FakeFrame(["b"]), 1)
    assert broker.visible() == ["a"]


class Remembering:
    """Says what is noted; more of it once the term is taken."""

    def __init__(self, store: CheckpointStore, *, owner: str = "memory") -> None:
        self.store = store
        self.owner: str | None = owner
        self.noted_late: Note | None = None
        self.claimed_in_term: list[int] = []

    def claim(self, _owner: Owner) -> None:
        self.claimed_in_term.append(newest_term(self.store))

    def open(self) -> tuple[Any, ...]:
        return ()

    @property
    def members(self) -> tuple[Member, ...]:
        return (kafka_member(),)

    def ownership(self, asking: Owner) -> tuple[Ownership, ...]:
        noted = self.noted_late if newest_term(self.store) else None
        notes = () if noted is None else (structs.replace(noted, pipeline=asking.pipeline),)
        owner = None if self.owner is None else Owner(asking.pipeline, self.owner)
        return (Ownership("it", owner, notes),)


def start_in_order(
    store: CheckpointStore, participant: Any, monkeypatch: pytest.MonkeyPatch, **asked: Any
) -> None:
    for step in ("gather", "make_plan", "execute"):
        monkeypatch.setattr(takeover, step, lambda *_given, **_known: None)
    takeover.take_over(store, DecisionLog(store), participant, driver="we", **asked)


def test_a_driver_that_is_refused_stops_nobody(
    ordered_store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OwnershipError):
        start_in_order(ordered_store, Remembering(ordered_store, owner="elsewhere"), monkeypatch)
    assert newest_term(ordered_store) == 0


def test_what_was_noted_while_we_took_the_term_refuses_an_older_copy(
    ordered_store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    participant = Remembering(ordered_store)
    participant.noted_late = Note(7, 1, "b" * 32, "")
    with pytest.raises(OwnershipError, match="older copy"):
        start_in_order(ordered_store, participant, monkeypatch)


def test_who_was_let_in_while_another_still_drove_is_asked_again_before_the_term(
    ordered_store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood by; meanwhile the name went to another pipeline."""
    participant: Any = Remembering(ordered_store)
    admitted = takeover.require_admitted(ordered_store, participant, "we", None)
    participant.owner = "elsewhere"
    with pytest.raises(OwnershipError):
        start_in_order(ordered_store, participant, monkeypatch, admitted=admitted)
    assert newest_term(ordered_store) == 0


def test_a_name_that_is_ours_is_claimed_while_another_still_drives_and_not_once_more(
    ordered_store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To claim what is ours changes nothing, and takes time in which no row is delivered."""
    participant: Any = Remembering(ordered_store)
    start_in_order(ordered_store, participant, monkeypatch)
    participant.owner = ordered_store.location
    participant.claimed_in_term.clear()
    admitted = takeover.require_admitted(ordered_store, participant, "we", None)
    assert participant.claimed_in_term == [1]
    start_in_order(ordered_store, participant, monkeypatch, admitted=admitted)
    assert participant.claimed_in_term == [1]
    assert newest_term(ordered_store) == 2


def test_a_name_that_was_given_up_while_another_still_drove_is_claimed_before_the_term(
    ordered_store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    participant: Any = Remembering(ordered_store)
    start_in_order(ordered_store, participant, monkeypatch)
    participant.owner = ordered_store.location
    admitted = takeover.require_admitted(ordered_store, participant, "we", None)
    participant.owner = None
    participant.claimed_in_term.clear()
    start_in_order(ordered_store, participant, monkeypatch, admitted=admitted)
    assert participant.claimed_in_term == [1], "not claimed, or only once it had stopped the other"


def test_what_an_empty_checkpoint_went_on_from_is_not_gone_on_from_once_another_began_it(
    ordered_store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood by while another delivered the first batch: forgetting that lets a copy in."""

    class Began:
        def former(self, _pipeline: str) -> None: ...

        def begin(self) -> None: ...

    class Inheriting(Remembering):
        inherited = False

        def inherit(self, _owner: Owner) -> None:
            self.inherited = True

    participant: Any = Inheriting(ordered_store)
    admitted = takeover.require_admitted(ordered_store, participant, "we", None)
    before = admitted._replace(former=Former("another", None))
    start_in_order(ordered_store, participant, monkeypatch, admitted=before, progress=Began())
    assert not participant.inherited


# --- Where the driver is, as its heartbeat tells whoever has to end it ----------------------------


def session(master: str, **conf: str) -> Any:
    settings = {name.replace("_", "."): value for name, value in conf.items()}
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master), conf=settings)


@pytest.mark.parametrize(
    ("spark", "found"),
    [
        (session("k8s://https://api", spark_kubernetes_namespace="streams"), "streams"),
        (session("k8s://https://api"), "default"),
        (session("yarn", spark_kubernetes_namespace="streams"), ""),
    ],
    ids=["said", "Spark's own default", "no pod"],
)
def test_a_driver_says_in_which_namespace_its_pod_is(spark, found):
    assert namespace(spark) == found


# --- Columns as Arrow has them, by whichever Spark is there ---------------------------------------


def test_instants_are_in_utc_in_any_spark(monkeypatch):
    """Spark 4.0 and 4.1 refuse the word that 4.2 asks for."""
    schema = StructType().add("at", "timestamp")
    wanted = pa.schema([("at", pa.timestamp("us", "UTC"))])
    assert in_arrow(schema) == wanted

    def before(_schema: StructType, *, timestamp_utc: bool = True) -> pa.Schema:
        assert timestamp_utc
        return wanted

    monkeypatch.setattr(types, "to_arrow_schema", before)
    assert in_arrow(schema) == wanted
