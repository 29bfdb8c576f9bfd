"""The steps of a batch on the driver, each with what may go wrong right before or after it."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import msgspec
import obstore.store
import pytest
from structlog.testing import capture_logs

from airflow_eos.core.checkpoint import CheckpointStore, Decision, DecisionLog, Verdict
from airflow_eos.core.checkpoint.topics import LostInput
from airflow_eos.core.delivery.batch import ExactlyOnceBatch, check_tasks
from airflow_eos.core.delivery.outputs import InPlanSink
from airflow_eos.core.delivery.port import TaskReport
from airflow_eos.core.delivery.replay import ReplayChecks
from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.core.protocol.participant import ANEW
from airflow_eos.errors import (
    DecisionNeededError,
    DeliveryError,
    InputLostError,
    KafkaUnavailableError,
    NonDeterministicReplayError,
    PromiseLostError,
    SupersededError,
    TransactionError,
)
from airflow_eos.sinks import MySqlSink, WriteAheadSink
from tests.support.authority import OFFSETS, authority_of
from tests.support.pipelines import abort_of
from tests.unit.core.delivery.fakes import FakeBroker, FakeFrame, FakeParticipant, FakeSink

ROWS = FakeFrame(["a", "b"], [], ["c"])


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
def log() -> DecisionLog:
    return DecisionLog(CheckpointStore(obstore.store.MemoryStore(), "memory"))


@pytest.fixture
def sink(broker: FakeBroker) -> FakeSink:
    return FakeSink(broker)


def driver(
    sink: Any,
    log: DecisionLog,
    *,
    name: str = "driver 1",
    planned: bool = False,
    accepted: Any = lambda _batch, _promise: None,
    reading: ReplayChecks | None = None,
) -> Any:
    return ExactlyOnceBatch(
        InPlanSink(sink) if planned else sink,
        FakeParticipant(sink.broker),
        log,
        authority_of(log._store, log),
        rulings=lambda _unknown: {},
        driver=name,
        on_phase=lambda _batch, _phase: None,
        accepted=accepted,
        reading=reading,
    )


def promise(sink: Any, log: DecisionLog, frame: FakeFrame, batch: int = 0) -> None:
    """By a driver that dies as soon as it has decided."""
    died = driver(sink, log)
    died._settle = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        died(frame, batch)


def commits(log: DecisionLog, batch: int = 0) -> list[Decision]:
    return [d for d in log.of_batch(batch) if d.verdict is Verdict.COMMIT]


def test_a_batch_becomes_visible_once_and_is_named_by_one_decision(broker, sink, log):
    driver(sink, log)(ROWS, 0)
    assert broker.visible() == ["a", "b", "c"]
    [decision] = commits(log)
    assert {work.key for work in decision.works} == {"etl-0-0-7-0", "etl-2-0-7-0"}


def test_nothing_is_visible_before_the_decision_is_durable(broker, sink, log, monkeypatch):
    seen = []
    record = log.record

    def spy(decision):
        seen.append((decision.verdict, broker.visible()))
        return record(decision)

    monkeypatch.setattr(log, "record", spy)
    driver(sink, log)(ROWS, 0)
    assert (Verdict.COMMIT, []) in seen


def test_what_would_show_more_than_its_own_rows_is_not_decided(broker, sink, log, monkeypatch):
    """A marker that Kafka has left out lets the next one of its producer end both (KAFKA-20734)."""
    asked: list[Any] = []

    def refuse(_self: Any, works: Any) -> None:
        asked.extend(works)
        raise DeliveryError("older rows are open there")

    monkeypatch.setattr(FakeParticipant, "require_decidable", refuse, raising=False)
    with pytest.raises(DeliveryError, match="older rows"):
        driver(sink, log)(ROWS, 0)
    assert {work.key for work in asked} == {"etl-0-0-7-0", "etl-2-0-7-0"}
    assert (commits(log), broker.visible(), broker.open()) == ([], [], [])
    monkeypatch.setattr(FakeParticipant, "require_decidable", lambda *_given: None)
    driver(sink, log, name="driver 2")(ROWS, 0)
    assert broker.visible() == ["a", "b", "c"]


def test_what_a_former_drivers_task_opens_late_is_ended_by_the_next_batch(broker, sink, log):
    """Found by the chaos suite, history 21000546: it kept readers waiting until its timeout."""
    late = driver(sink, log)
    sink.before_return = lambda: broker.prepare("etl-9-0", ("straggler",))
    late(ROWS, 0)
    assert broker.open() == []
    assert broker.visible() == ["a", "b", "c"]


def test_a_late_copy_that_took_the_id_of_a_kept_transaction_loses_no_row(broker, sink, log):
    """Spark counts attempts anew where it repeats a stage; listing tells no epoch."""
    late = driver(sink, log)
    sink.before_return = lambda: broker.prepare("etl-0-0", ("copy",))
    with pytest.raises(PromiseLostError):
        late(ROWS, 0)
    sink.before_return = lambda: None
    driver(sink, log, name="driver 2")(ROWS, 0)
    assert broker.visible() == ["a", "b", "c"]
    assert broker.open() == []


def test_an_empty_batch_promises_no_rows_and_its_range(broker, sink, log):
    """Its end is the next one's start: Spark's log alone would not tell it."""
    driver(sink, log)(FakeFrame([], []), 0)
    [decision] = commits(log)
    assert (decision.works, decision.offsets) == ((), OFFSETS)
    assert not broker.state


def test_a_crash_after_the_decision_settles_it_and_evaluates_the_batch_once(broker, sink, log):
    promise(sink, log, FakeFrame(["a"], ["b"]))
    assert broker.visible() == []
    again = FakeFrame(["a"], ["b"])
    driver(sink, log, name="driver 2")(again, 0)
    assert broker.visible() == ["a", "b"]
    assert again.evaluations == 1, "Spark's state of this batch needs it evaluated, once"
    assert len(commits(log)) == 1


def test_a_batch_whose_tasks_are_planned_becomes_visible_once(broker, sink, log):
    planned = driver(sink, log, planned=True)
    planned(planned.streamed(ROWS), 0)
    assert broker.visible() == ["a", "b", "c"]
    [decision] = commits(log)
    assert {work.key for work in decision.works} == {"etl-0-0-7-0", "etl-2-0-7-0"}


def test_a_promise_met_by_planned_tasks_is_refused_and_nothing_is_written(broker, sink, log):
    """Another driver promised the batch after this query had been planned."""
    promise(sink, log, FakeFrame(["a"], ["b"]))
    frame = FakeFrame(["a"], ["b"])
    planned = driver(sink, log, name="driver 2", planned=True)
    with pytest.raises(SupersededError, match="start the query again"):
        planned(planned.streamed(frame), 0)
    assert frame.evaluations == 0
    assert broker.open() == []
    driver(sink, log, name="driver 3")(frame, 0)
    assert broker.visible() == ["a", "b"]
    assert frame.evaluations == 1


def test_promised_rows_that_timed_out_are_replayed_and_only_those(broker, sink, log):
    promise(sink, log, FakeFrame(["a"], ["b"]))
    first, second = broker.open()
    broker.end(first, Outcome.ABORTED)
    broker.end(second, Outcome.COMMITTED)
    driver(sink, log)(FakeFrame(["b"], ["a"]), 0)  # the tasks read other partitions now
    assert broker.visible() == ["a", "b"]
    assert [work.rows for work in commits(log)[-1].works] == [1]


def test_a_replay_that_times_out_is_replayed_again(broker, sink, log):
    for _ in range(3):
        promise(sink, log, FakeFrame(["a"], ["b"]))
        for identity in broker.open():
            broker.end(identity, Outcome.ABORTED)
    driver(sink, log)(FakeFrame(["a"], ["b"]), 0)
    assert broker.visible() == ["a", "b"]


def test_rows_that_changed_on_replay_are_refused_and_nothing_becomes_visible(broker, sink, log):
    promise(sink, log, FakeFrame(["a"], ["b"]))
    for identity in broker.open():
        broker.end(identity, Outcome.ABORTED)
    with pytest.raises(NonDeterministicReplayError, match="rand"):
        driver(sink, log)(FakeFrame(["a"], ["x"]), 0)
    assert broker.visible() == []
    assert broker.open() == []


def test_a_promise_lost_while_settling_is_left_to_the_restart(broker, sink, log):
    sink.before_return = lambda: [broker.end(i, Outcome.ABORTED) for i in broker.open()[:1]]
    with pytest.raises(PromiseLostError, match="1 of 2"):
        driver(sink, log)(FakeFrame(["a"], ["b"]), 0)
    sink.before_return = lambda: None
    driver(sink, log)(FakeFrame(["a"], ["b"]), 0)
    assert broker.visible() == ["a", "b"]


def test_an_unknown_outcome_is_never_guessed(broker, sink, log):
    promise(sink, log, FakeFrame(["a"]))
    broker.unknown = set(broker.open())
    with pytest.raises(DecisionNeededError, match="etl-0-0"):
        driver(sink, log)(FakeFrame(["a"]), 0)


@pytest.mark.parametrize("told", [(), (Outcome.OPEN,)], ids=["nothing", "that it is open"])
def test_what_a_kind_does_not_say_is_no_loss_and_comes_no_second_time(
    broker, sink, log, monkeypatch, told
):
    """A user's own kind, that leaves work out of its answer."""

    def commit(_self: Any, works: Any) -> Any:
        return {work.identity: outcome for work in works for outcome in told}

    monkeypatch.setattr(FakeParticipant, "commit", commit)
    for _ in range(2):
        with pytest.raises(DeliveryError, match="does not say what became of it"):
            driver(sink, log)(FakeFrame(["a"]), 0)
    monkeypatch.undo()
    driver(sink, log)(FakeFrame(["a"]), 0)
    assert broker.visible() == ["a"]


def test_a_batch_accepted_as_it_is_is_evaluated_once_and_not_replayed(broker, sink, log):
    promise(sink, log, FakeFrame(["a"], ["b", "c"], ["d"]))
    first, second, third = broker.open()
    broker.end(first, Outcome.ABORTED)
    broker.end(second, Outcome.COMMITTED)
    broker.end(third, Outcome.ABORTED)
    broker.unknown = {third}
    asked = []

    def accepted(batch, promise):
        asked.append((batch, promise))
        return SimpleNamespace(ruled_by="ann", ruled_at_ms=1, given_up=())

    left = FakeFrame(["b"])  # the input is gone
    with capture_logs() as logs:
        driver(sink, log, accepted=accepted)(left, 0)
    assert asked == [(0, commits(log)[0].nonce)]
    assert left.evaluations == 1, "Spark's state of this batch needs it evaluated, once"
    assert broker.visible() == ["b", "c"]
    assert broker.open() == []
    [told] = [entry for entry in logs if entry["event"] == "rows_given_up"]
    assert (told["log_level"], told["rows"], told["batch"]) == ("error", 2, 0)


def test_an_acceptance_does_not_keep_an_open_promise_from_being_settled(broker, sink, log):
    promise(sink, log, FakeFrame(["a"], ["b"]))
    accepted = SimpleNamespace(ruled_by="ann", ruled_at_ms=1, given_up=())
    with capture_logs() as logs:
        driver(sink, log, accepted=lambda *_: accepted)(FakeFrame(["a"], ["b"]), 0)
    assert broker.visible() == ["a", "b"]
    assert not [entry for entry in logs if entry["event"] == "rows_given_up"]


def test_what_a_person_gave_up_is_never_committed_though_it_could_be(broker, sink, log):
    promise(sink, log, FakeFrame(["a"], ["b", "c"]))
    poison, _ = broker.open()
    accepted = SimpleNamespace(ruled_by="ann", ruled_at_ms=1, given_up=(poison,))
    with capture_logs() as logs:
        driver(sink, log, accepted=lambda *_: accepted)(FakeFrame(["a"], ["b", "c"]), 0)
    assert broker.visible() == ["b", "c"]
    assert len(commits(log)) == 1
    [told] = [entry for entry in logs if entry["event"] == "rows_given_up"]
    assert told["rows"] == 1


def test_nothing_is_promised_with_little_of_its_timeout_left(broker, sink, log, monkeypatch):
    """It would be over before it is settled, and what others have of the batch stays."""
    prepare = broker.prepare

    def long_ago(*args):
        work = prepare(*args)
        return msgspec.structs.replace(work, opened_at_ms=work.opened_at_ms - 55_000)

    monkeypatch.setattr(broker, "prepare", long_ago)
    with pytest.raises(DeliveryError, match=r"opened 55\.\d s ago.*too little is left"):
        driver(sink, log)(ROWS, 0)
    assert commits(log) == []
    assert broker.open() == []
    monkeypatch.setattr(broker, "prepare", prepare)
    driver(sink, log)(ROWS, 0)
    assert broker.visible() == ["a", "b", "c"]


def test_a_batch_is_too_late_where_listing_took_the_time_that_was_left(
    broker, sink, log, monkeypatch
):
    """A broker that is away may hold the listing up for a minute: it comes before the decision."""
    listed = FakeParticipant.open
    clock = SimpleNamespace(time_ns=time.time_ns)

    def slow(self, **besides):
        clock.time_ns = lambda: time.time_ns() + 55 * 10**9
        return listed(self, **besides)

    monkeypatch.setattr(FakeParticipant, "open", slow)
    monkeypatch.setattr("airflow_eos.core.delivery.batch.time", clock)
    with pytest.raises(DeliveryError, match="too little is left"):
        driver(sink, log)(ROWS, 0)
    assert commits(log) == []


def test_a_leftover_that_cannot_be_ended_costs_no_promise_its_timeout(
    broker, sink, log, monkeypatch
):
    broker.prepare("etl-9-9", ["left by a lost task"])
    abort = FakeParticipant.abort

    def away(self, works):
        raise KafkaUnavailableError("no broker answers")

    monkeypatch.setattr(FakeParticipant, "abort", away)
    with capture_logs() as logs:
        driver(sink, log)(ROWS, 0)
    assert broker.visible() == ["a", "b", "c"]
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == ["left_open"]
    monkeypatch.setattr(FakeParticipant, "abort", abort)
    driver(sink, log)(ROWS, 1)
    assert broker.open() == []


def test_what_was_given_up_and_committed_meanwhile_is_not_told_as_lost(broker, sink, log):
    """A person who trusts the count would insert the rows by hand: twice."""
    promise(sink, log, FakeFrame(["a"]))
    [given_up] = broker.open()
    broker.end(given_up, Outcome.COMMITTED)
    accepted = SimpleNamespace(ruled_by="ann", ruled_at_ms=1, given_up=(given_up,))
    with capture_logs() as logs:
        driver(sink, log, accepted=lambda *_: accepted)(FakeFrame(["a"]), 0)
    assert not [entry for entry in logs if entry["event"] == "rows_given_up"]


def test_a_second_driver_takes_the_attempt_of_the_first(broker, sink, log):
    second = FakeSink(broker)
    sink.before_return = lambda: driver(second, log, name="driver 2")(FakeFrame(["a"], ["b"]), 0)
    with pytest.raises(SupersededError, match=r"driver 2.*Another driver"):
        driver(sink, log)(FakeFrame(["a"], ["b"]), 0)
    assert broker.visible() == ["a", "b"]
    assert broker.open() == []


def test_who_is_superseded_while_a_broker_is_away_is_told_so(broker, sink, log, monkeypatch):
    """Told of the broker alone, its task would start it again, and throw the other one out."""
    second = FakeSink(broker)

    def overtaken():
        driver(second, log, name="driver 2")(FakeFrame(["a"]), 0)
        monkeypatch.setattr(FakeParticipant, "abort", away)

    def away(*_works):
        raise KafkaUnavailableError("no broker answers")

    sink.before_return = overtaken
    with pytest.raises(SupersededError, match=r"driver 2.*Another driver"):
        driver(sink, log)(FakeFrame(["a"]), 0)


def test_a_zombie_that_decided_first_is_settled_by_the_second(broker, sink, log):
    zombie = driver(sink, log, name="zombie")
    zombie._settle = lambda *_: driver(FakeSink(broker), log)(FakeFrame(["a"], ["b"]), 0)
    zombie(FakeFrame(["a"], ["b"]), 0)
    assert broker.visible() == ["a", "b"]
    assert len(commits(log)) == 1


def test_an_attempt_sealed_by_recovery_may_start_again(broker, sink, log):
    def seal():
        attempt = len(log.of_batch(0)) + 1
        sealed = abort_of(
            0,
            attempt=attempt,
            reason="dangling",
            decided_by="recovery here",
            decided_at_ms=time.time_ns() // 1_000_000,
        )
        assert log.record(sealed)

    sink.before_return = seal
    with pytest.raises(SupersededError, match="Start the query again"):
        driver(sink, log)(FakeFrame(["a"]), 0)
    assert broker.open() == []
    sink.before_return = lambda: None
    driver(sink, log)(FakeFrame(["a"]), 0)
    assert broker.visible() == ["a"]


def test_a_failed_batch_leaves_nothing_open_and_its_attempt_sealed(broker, sink, log):
    def fail():
        raise RuntimeError("a task failed")

    sink.before_return = fail
    with pytest.raises(RuntimeError):
        driver(sink, log)(FakeFrame(["a"], ["b"]), 0)
    assert broker.open() == []
    assert [d.verdict for d in log.of_batch(0)] == [Verdict.ABORT, Verdict.ABORT]


def test_what_a_lost_task_attempt_left_open_is_aborted(broker, sink, log):
    sink.attempts[0] = 1
    sink.before_return = lambda: broker.prepare("etl-0-0", ("a",))
    driver(sink, log)(FakeFrame(["a"], ["b"]), 0)
    assert broker.open() == []
    assert broker.visible() == ["a", "b"]


@pytest.mark.parametrize("tasks", [[0, 2], [0, 0, 1], [1]])
def test_a_batch_without_one_result_for_each_task_is_refused(tasks):
    with pytest.raises(DeliveryError, match="runs again"):
        check_tasks(3, [TaskReport(task, 0, "0" * 32) for task in tasks])


GONE = LostInput({("orders", 1): 2}, ("customers",), skipped=True)
ACCEPTED = SimpleNamespace(ruled_by="ann", ruled_at_ms=1, given_up=())


def lost(broker: FakeBroker, sink: FakeSink, log: DecisionLog) -> None:
    """Promised ``a``, ``b`` and ``c``, and aborted by a timeout."""
    promise(sink, log, FakeFrame(["a", "b"], ["c"]))
    for identity in broker.open():
        broker.end(identity, Outcome.ABORTED)


def test_a_kept_promise_without_state_is_not_evaluated(broker, sink, log):
    driver(sink, log)(FakeFrame(["a"]), 0)
    again = FakeFrame([])  # the input is gone
    driver(sink, log, reading=ReplayChecks(state=tuple))(again, 0)
    assert again.evaluations == 0
    assert broker.visible() == ["a"]


def test_rows_that_the_input_has_lost_are_named_and_what_accepting_costs(broker, sink, log):
    lost(broker, sink, log)
    with pytest.raises(
        InputLostError, match=r"2 offsets .* partition 1 of topic 'orders'"
    ) as found:
        driver(sink, log, reading=ReplayChecks(lost=lambda: GONE))(FakeFrame(["b"], []), 0)
    assert "topic 'customers' is compacted" in str(found.value)
    assert "rand" not in str(found.value)
    assert [each.costs for each in found.value.remedies] == ["2 rows"]
    assert broker.visible() == []


def test_an_accepted_batch_delivers_what_its_input_still_has(broker, sink, log):
    lost(broker, sink, log)
    with capture_logs() as logs:
        driver(sink, log, accepted=lambda *_: ACCEPTED)(FakeFrame(["b"], []), 0)
    assert broker.visible() == ["b"]
    assert [each["rows"] for each in logs if each["event"] == "rows_given_up"] == [2]


def test_an_accepted_batch_of_another_query_is_given_up_whole(broker, sink, log):
    lost(broker, sink, log)
    driver(sink, log, accepted=lambda *_: ACCEPTED)(FakeFrame(["x", "y"], ["z"]), 0)
    assert broker.visible() == []


def test_what_was_accepted_and_comes_back_as_promised_is_delivered(broker, sink, log):
    lost(broker, sink, log)
    driver(sink, log, accepted=lambda *_: ACCEPTED)(FakeFrame(["a", "b"], ["c"]), 0)
    assert broker.visible() == ["a", "b", "c"]


def promised_in_two(broker: FakeBroker, sink: FakeSink, log: DecisionLog) -> None:
    """Readers have ``a``; ``b`` was aborted by a timeout."""
    promise(sink, log, FakeFrame(["a"], ["b"]))
    first, second = broker.open()
    broker.end(first, Outcome.COMMITTED)
    broker.end(second, Outcome.ABORTED)


def past_retention(*_given: Any) -> Any:
    raise TransactionError("rows that were delivered are past retention")


def of_a_table(*given: Any) -> Any:
    return MySqlSink("mysql://user@db/shop", "orders", "etl").delivered(*given)


def of_a_callable(*given: Any) -> Any:
    return WriteAheadSink("app:post").delivered(*given)


def cleaned_up(*_given: Any) -> Any:
    raise RuntimeError("[PATH_NOT_FOUND] Path does not exist: file:/lake/0-0-a.parquet")


CANNOT_BE_READ_BACK = (past_retention, of_a_table, of_a_callable, cleaned_up)


@pytest.mark.parametrize("delivered", CANNOT_BE_READ_BACK)
def test_no_dead_end_what_nobody_can_tell_is_given_up_once_it_is_accepted(
    broker, sink, log, monkeypatch, delivered
):
    """Other tasks cut it, and readers' rows cannot be read back: found by the model."""
    promised_in_two(broker, sink, log)
    monkeypatch.setattr(sink, "delivered", delivered)
    monkeypatch.setattr(FakeFrame, "sparkSession", None, raising=False)
    with pytest.raises(DecisionNeededError, match="accept") as asked:
        driver(sink, log)(FakeFrame(["a", "b"]), 0)
    assert [each.costs for each in asked.value.remedies] == ["1 rows"]
    driver(sink, log, accepted=lambda *_: ACCEPTED)(FakeFrame(["a", "b"]), 0)
    assert broker.visible() == ["a"]


@pytest.mark.parametrize("delivered", CANNOT_BE_READ_BACK)
def test_no_dead_end_an_accepted_batch_that_died_again_is_not_asked_for_what_it_cannot_read_back(
    broker, sink, log, monkeypatch, delivered
):
    """What its input still had is delivered, and Spark has not completed the batch."""
    promised_in_two(broker, sink, log)
    monkeypatch.setattr(sink, "delivered", delivered)
    monkeypatch.setattr(FakeFrame, "sparkSession", None, raising=False)
    driver(sink, log, accepted=lambda *_: ACCEPTED)(FakeFrame(["b"]), 0)
    assert broker.visible() == ["a"]


def test_what_readers_may_have_does_not_come_again_where_a_batch_is_accepted(broker, sink, log):
    promised_in_two(broker, sink, log)
    broker.unknown = {commits(log)[0].works[0].identity}
    driver(sink, log, accepted=lambda *_: ACCEPTED)(FakeFrame(["a"], ["b"]), 0)
    assert broker.visible() == ["a", "b"]


ABSENT = LostInput({("orders", 1): 2}, absent=True)


def test_a_promise_of_a_partition_that_is_read_no_more_is_given_up_to_the_row(broker, sink, log):
    """Beside it no source gives any of the rows: nothing is evaluated, before and after."""
    promised_in_two(broker, sink, log)
    reading, frame = ReplayChecks(tuple, lambda: ABSENT), FakeFrame([])
    with pytest.raises(InputLostError, match="is not there, or is not read") as refused:
        driver(sink, log, reading=reading)(frame, 0)
    assert refused.value.remedies[-1].commands == ("airflow-eos accept CHECKPOINT --batch 0 --yes",)
    assert refused.value.remedies[-1].costs == "1 rows"
    with capture_logs() as logs:
        driver(sink, log, reading=reading, accepted=lambda *_: ACCEPTED)(frame, 0)
    assert [each["rows"] for each in logs if each["event"] == "rows_given_up"] == [1]
    assert (frame.evaluations, broker.visible()) == (0, ["a"])


@pytest.mark.parametrize("owing", [False, True])
def test_state_that_needs_a_partition_that_is_read_no_more_can_only_begin_anew(
    broker, sink, log, owing
):
    lost(broker, sink, log) if owing else driver(sink, log)(FakeFrame(["a"]), 0)
    frame = FakeFrame([])
    with pytest.raises(InputLostError, match="Aggregate") as refused:
        driver(sink, log, reading=ReplayChecks(lambda: ("Aggregate",), lambda: ABSENT))(frame, 0)
    assert refused.value.remedies[-1] == ANEW
    assert frame.evaluations == 0


@pytest.mark.parametrize(
    ("state", "found", "costs"),
    [(("Aggregate",), "for the state", "state"), ((), "readers lack", "")],
)
def test_what_a_source_would_refuse_is_refused_with_the_way_on(
    broker, sink, log, state, found, costs
):
    """Before it reads: Spark's source and ours say the same."""
    gone = LostInput({("orders", 1): 2}, skipped=False)
    if state:
        driver(sink, log)(FakeFrame(["a"]), 0)
    else:
        lost(broker, sink, log)
    frame = FakeFrame([])
    with pytest.raises(InputLostError, match=found) as refused:
        driver(sink, log, reading=ReplayChecks(lambda: state, lambda: gone))(frame, 0)
    [remedy] = refused.value.remedies
    assert remedy.settings == {"failOnDataLoss": "false"}
    assert costs in remedy.costs
    assert frame.evaluations == 0
