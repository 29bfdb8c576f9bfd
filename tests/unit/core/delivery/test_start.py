"""A start: refused, called off, in which order it takes over, and where it begins."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from functools import partial
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
from airflow_eos.core.checkpoint.drain import BY_AIRFLOW
from airflow_eos.core.checkpoint.heartbeat import STARTED_BY, read_heartbeat
from airflow_eos.core.delivery import (
    exactly_once,
    input_check,
    source,
    start,
    takeover,
    weaker_guarantees,
)
from airflow_eos.core.delivery.batch import Authority
from airflow_eos.core.delivery.committed_offsets import CommittedOffsets
from airflow_eos.core.delivery.input_check import InputCheck
from airflow_eos.core.delivery.outputs import OneSink
from airflow_eos.core.delivery.own_output import OwnOutput
from airflow_eos.core.delivery.policy import CheckpointPolicy
from airflow_eos.core.delivery.port import Former
from airflow_eos.core.delivery.spark_session import QuerySettings, namespace
from airflow_eos.core.delivery.start_option import GuaranteeOption, Start, StartOption
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
from tests.support.starts import begun
from tests.unit.core.delivery.driving import decision_log, driver
from tests.unit.core.delivery.fakes import FakeBroker, FakeFrame, FakeSink
from tests.unit.ops.supervision.lives import drain, started


def test_the_last_heartbeat_of_a_query_that_spark_refused_is_no_sign_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    df = MagicMock()
    df.sparkSession.sparkContext = SimpleNamespace(
        applicationId="local-1", master="local", uiWebUrl=None
    )
    df.sparkSession.conf.get.return_value = "client"
    writer = df.writeStream.outputMode.return_value.foreachBatch.return_value
    started = writer.option.return_value.trigger.return_value.start
    started.side_effect = RuntimeError("Spark refuses")

    def taken(begun: Start, _after: int | None) -> Any:
        begun.heartbeat.start()
        return MagicMock(streamed=lambda rows: rows)

    monkeypatch.setattr(source, "check_sources", lambda *_: ())
    monkeypatch.setattr(start, "begin", taken)
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
    monkeypatch.setattr(start, "begin", take)
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
    monkeypatch.setattr(exactly_once, "take_over", take)
    monkeypatch.setattr(InputCheck, "before_term", lambda *_: None)
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
        return begun(MagicMock(), sink, store, MagicMock())

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
    batch = begun(MagicMock(), sink, store, MagicMock(), wrap=lambda _: watched)
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
        begun(MagicMock(), MagicMock(guarantee=guarantee), store, heartbeat)
    assert not heartbeat.start.called


# --- in which order a start asks its options ------------------------------------------------------


class Noted(StartOption):
    """Says when it is asked, and when what it opened is closed."""

    def __init__(self, name: str, said: list[str]) -> None:
        self.name, self.said = name, said

    def examine(self, _start: Start) -> None:
        self.said.append(f"{self.name} examines")

    def before_term(self, start: Start) -> None:
        self.said.append(f"{self.name} opens")
        start.resources.callback(self.said.append, f"{self.name} closes")

    def after_term(self, _start: Start, _tenure: Any) -> None:
        self.said.append(f"{self.name} again")

    def wrap(self, _start: Start, sink: Any) -> Any:
        return f"{self.name}({sink})"


class NotedGuarantee(Noted, GuaranteeOption):
    def refuse(self, _store: CheckpointStore) -> None:
        self.said.append("refuses")

    def take_term(self, _start: Start, _after: int | None) -> Any:
        self.said.append("term")
        return SimpleNamespace(term=SimpleNamespace(number=1))

    def batch(self, start: Start, _tenure: Any) -> Any:
        self.said.append(f"writes to {start.wrapped('sink')}")  # type: ignore[arg-type]
        return MagicMock(streamed=lambda rows: rows)


@pytest.fixture
def noted(monkeypatch) -> tuple[Start, list[str]]:
    """A start with two options; what it is asked, and what its heartbeat says."""
    said: list[str] = []
    monkeypatch.setattr(start, "require_not_cancelled", lambda _: said.append("cancelled?"))
    store = CheckpointStore(obstore.store.MemoryStore(), "memory")
    spark, frame, sink = MagicMock(), MagicMock(), MagicMock(guarantee="exactly_once")
    sink.check.side_effect = lambda _: said.append("workers")
    sink.rows.return_value.sparkSession.streams.active = []
    settings = QuerySettings(
        "memory", None, {"availableNow": True}, CheckpointPolicy(num_retained=7), "append", None
    )
    read: Any = SimpleNamespace(frame=frame)
    one = Start(spark, store, settings, read, sink)
    one.options, one.guarantee = (Noted("a", said), Noted("b", said)), NotedGuarantee("g", said)
    one.heartbeat = MagicMock()
    one.heartbeat.start.side_effect = lambda _: said.append("beats")
    one.heartbeat.stop.side_effect = lambda phase, _: said.append(f"says {phase}")
    return one, said


ASKED = [
    *("a opens", "b opens", "g opens", "refuses", "cancelled?", "term", "refuses", "beats"),
    *("a again", "b again", "writes to b(a(sink))"),
]


def test_a_start_is_examined_before_anything_is_opened(noted):
    one, said = noted
    one.spark.sparkContext.master = "spark://here:7077"
    start.examine(one, asked_before=True)
    one.workers_answer()
    assert said == ["a examines", "b examines"], "a standby's executors are kept"
    one.sink.check.assert_not_called()


def test_a_standby_that_takes_over_asks_workers_beside_it_again_which_were_let_go(noted):
    one, _ = noted
    one.spark.sparkContext.master = "local[2]"
    start.examine(one, asked_before=True)
    one.workers_answer()
    one.sink.check.assert_called_once_with(one.spark)


def test_workers_are_asked_while_connections_are_opened_and_answer_before_anything_is_written(
    noted,
):
    one, said = noted
    opened = threading.Event()

    def check(_: Any) -> None:
        assert opened.wait(60), "connections wait for the workers"
        said.append("workers")

    one.sink.check.side_effect = check
    one.store.check_create_if_absent = lambda: said.append("probes")
    one.guarantee.before_term = lambda _: opened.set()
    start.examine(one, asked_before=False)
    start.run(one)
    steps = [each for each in said if each in {"b opens", "workers", "probes", "term"}]
    assert steps == ["b opens", "workers", "probes", "term"]


def test_what_workers_lack_is_told_before_what_failed_meanwhile(noted):
    one, said = noted
    one.sink.check.side_effect = ConfigurationError("workers lack pyarrow")
    one.guarantee.before_term = MagicMock(side_effect=OwnershipError("another's"))
    start.examine(one, asked_before=False)
    with pytest.raises(ConfigurationError, match="workers lack pyarrow"):
        start.run(one)
    assert "term" not in said


def test_a_start_asks_before_its_term_whether_it_is_called_off_and_after_it_once_more(noted):
    one, said = noted
    start.run(one)
    assert said == ASKED
    one.heartbeat.follow.assert_called_once()


def test_what_a_standby_has_asked_before_the_term_is_not_asked_with_its_term_once_more(noted):
    one, said = noted
    start.run(one, after=3)
    assert said == ASKED[3:]


@pytest.mark.parametrize("step", ["term", "a again", "writes to b(a(sink))"])
def test_a_start_that_fails_says_so_and_closes_in_the_reverse_order(noted, monkeypatch, step):
    one, said = noted

    class Refusing(list[str]):
        def append(self, each: str) -> None:
            super().append(each)
            if each == step:
                raise OwnershipError("no")

    refusing = Refusing()
    for each in (*one.options, one.guarantee):
        monkeypatch.setattr(each, "said", refusing)
    with pytest.raises(OwnershipError):
        start.run(one)
    assert refusing[-4:] == [step, "g closes", "b closes", "a closes"]
    assert said[-1] == "says failed"


def test_a_query_that_runs_keeps_open_what_its_start_opened_until_it_ends(noted):
    one, said = noted
    query = start.run(one)
    assert "a closes" not in said
    query.stop()
    assert said[-4:] == ["says stopped", "g closes", "b closes", "a closes"]


def test_a_group_stops_before_its_connection_is_closed(noted):
    """What it does beside the batches goes over that connection."""
    one, said = noted
    group = MagicMock()
    for each, name in ((group, "the group"), (group.participant, "its connection")):
        each.close.side_effect = partial(said.append, f"{name} is closed")
    one.sink.connect.return_value.close.side_effect = partial(said.append, "the sink's is closed")
    offsets = CommittedOffsets(MagicMock(connected=lambda _: group))
    offsets.reached(one)
    assert offsets.progress is group
    one.close()
    assert said[0] == "the group is closed"
    assert sorted(said[1:]) == ["its connection is closed", "the sink's is closed"]


def test_a_topic_that_was_made_again_while_the_term_was_taken_is_not_read(noted, monkeypatch):
    one, _ = noted
    looks: list[str] = []
    monkeypatch.setattr(
        input_check, "same_topics_watched", lambda *_: partial(looks.append, "look")
    )
    monkeypatch.setattr(input_check, "input_change", MagicMock())
    one.read.topics, one.read.sources, one.read.reads = lambda *_: (), (), ()
    checked = InputCheck(OwnOutput(OneSink(MagicMock()), wanted=True))
    checked.before_term(one)
    assert looks == []
    checked.after_term(one, MagicMock())
    assert looks == ["look"]


def test_spark_keeps_the_batches_of_the_policy_until_the_query_runs(noted):
    """The batch function reads the same setting; the session gets its own back."""
    one, _ = noted
    conf = {"spark.sql.streaming.minBatchesToRetain": 100}
    one.spark.conf.get, one.spark.conf.set = conf.get, conf.__setitem__
    seen: list[int] = []

    def begin() -> Any:
        seen.extend(conf.values())
        return MagicMock()

    writer = one.read.frame.writeStream.outputMode.return_value.foreachBatch.return_value
    writer.option.return_value.trigger.return_value.start.side_effect = begin
    start.run(one)
    assert (seen, list(conf.values())) == ([7], [100])


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
        start=lambda _: taken.append("the heartbeat"), enter_phase=None, observer=None
    )

    def take_over(*_: Any, **__: Any) -> Any:
        taken.append("the claim")
        return MagicMock(), MagicMock()

    monkeypatch.setattr(exactly_once, "take_over", take_over)
    for module in (exactly_once, weaker_guarantees):
        monkeypatch.setattr(module, "retained_batches", lambda _: 2)

    def made(guarantee: str, us: StartedBy | None) -> list[str]:
        if us is not None:
            monkeypatch.setenv(STARTED_BY, us.as_text())
        begun(MagicMock(), MagicMock(guarantee=guarantee), store, driver)
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
