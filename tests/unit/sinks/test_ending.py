"""What a driver may end, and when it may say that a batch is delivered: nothing is guessed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from airflow_eos.checkpoint import Decision, DecisionLog, Verdict, take_term
from airflow_eos.delivery.port import TaskReport
from airflow_eos.errors import (
    KafkaUnavailableError,
    NonDeterministicReplayError,
    PromiseLostError,
    SupersededError,
)
from airflow_eos.protocol.decision import Outcome
from tests.unit.sinks.driving import commits, decision_log, driver
from tests.unit.sinks.fakes import FakeBroker, FakeFrame, FakeParticipant, FakeSink, id_of


class Killed(BaseException):
    """SIGKILL, as far as the code under test can tell: nobody handles it."""


def killed() -> None:
    raise Killed


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
def log() -> DecisionLog:
    return decision_log()


def promise(broker: FakeBroker, log: DecisionLog, frame: FakeFrame) -> None:
    """A driver is killed after its decision, with nothing committed."""
    died = driver(FakeSink(broker), broker, log, name="killed")
    died._settle = lambda *_: killed()
    with pytest.raises(Killed):
        died(frame, 0)
    assert len(commits(log)) == 1


def half_lost(broker: FakeBroker, log: DecisionLog) -> FakeFrame:
    """A promise of two rows, of which the broker aborted the first."""
    promise(broker, log, FakeFrame(["a"], ["b"]))
    lost, kept = broker.open()
    broker.end(lost, Outcome.ABORTED)
    broker.end(kept, Outcome.COMMITTED)
    return FakeFrame(["a"], ["b"])


def test_a_batch_is_not_over_while_nobody_knows_what_became_of_a_promise(broker, log):
    """Rows of an expired transaction may be lost: Spark must not write commits/0."""
    sink = FakeSink(broker)
    running = driver(sink, broker, log)
    sink.before_return = lambda: broker.unknown.update(broker.open()[:1])
    with pytest.raises(PromiseLostError, match="1 of 2"):
        running(FakeFrame(["a"], ["b"]), 0)


def test_a_replay_that_writes_other_rows_than_it_was_paired_by_is_not_decided(broker, log):
    """Spark may evaluate a lost partition of the kept batch anew, between the two readings."""
    frame = half_lost(broker, log)

    class Changing(FakeSink):
        def prepare(self, rows: Any, *, only: Collection[int] | None = None) -> list[TaskReport]:
            written = FakeFrame(["x"], ["b"]) if only else rows
            return super().prepare(written, only=only)

    with pytest.raises(NonDeterministicReplayError):
        driver(Changing(broker), broker, log)(frame, 0)
    assert broker.visible() == ["b"]
    assert broker.open() == []
    assert len(commits(log)) == 1


def test_a_replay_that_is_lost_in_turn_is_missed_of_the_first_promise(broker, log):
    """The second decision names one row of two, as many as are delivered: nothing seems missing."""
    frame = half_lost(broker, log)
    died = driver(FakeSink(broker), broker, log, name="killed too")
    died._settle = lambda *_: killed()
    with pytest.raises(Killed):
        died(frame, 0)
    [replayed] = broker.open()
    broker.end(replayed, Outcome.ABORTED)
    driver(FakeSink(broker), broker, log)(frame, 0)
    assert broker.visible() == ["a", "b"]


def test_what_a_replay_delivered_is_not_replayed_again(broker, log):
    """Killed before Spark wrote commits/0, it finds the batch promised twice and whole."""
    frame = half_lost(broker, log)
    for name in ("replays", "finds it whole"):
        driver(FakeSink(broker), broker, log, name=name)(frame, 0)
    assert broker.visible() == ["a", "b"]
    assert len(commits(log)) == 2


def test_a_failed_driver_aborts_nothing_once_another_one_has_taken_its_attempt(broker, log):
    """Rule 5: what it lists then may be what the other one is about to promise."""
    sink, theirs = FakeSink(broker), FakeSink(broker)
    theirs.before_return = killed

    def taken_over() -> None:
        """The other driver seals, lets its tasks write, and is killed before it decides."""
        with pytest.raises(Killed):
            driver(theirs, broker, log, name="driver 2")(FakeFrame(["a"], ["b"]), 0)
        raise RuntimeError("a task failed")

    sink.before_return = taken_over
    with pytest.raises(RuntimeError, match="a task failed"):
        driver(sink, broker, log)(FakeFrame(["a"], ["b"]), 0)
    assert len(broker.open()) == 2, "they may be decided by now"


def test_a_failed_driver_aborts_nothing_where_a_recovery_has_its_attempt(broker, log):
    """Who has taken the attempt ends what it listed; we have not won it."""
    sink = FakeSink(broker)

    def recovered() -> None:
        attempt = len(log.of_batch(0)) + 1
        assert log.record(
            Decision(
                batch_id=0,
                attempt=attempt,
                verdict=Verdict.ABORT,
                reason="sealed",
                decided_by="recovery",
                decided_at_ms=0,
                nonce="a" * 32,
            )
        )
        raise RuntimeError("a task failed")

    sink.before_return = recovered
    with pytest.raises(RuntimeError, match="a task failed"):
        driver(sink, broker, log)(FakeFrame(["a"], ["b"]), 0)
    assert len(broker.open()) == 2


def test_a_sleeper_whose_attempt_failed_ends_nothing_of_its_successors(broker, log):
    """Rule 5: its seal stands, in a place that was pruned long ago."""
    sink = FakeSink(broker)

    def outrun() -> None:
        take_term(log._store, taken_by="another")
        broker.prepare("etl-9-0", ("theirs",))
        raise RuntimeError("a task failed")

    sink.before_return = outrun
    with pytest.raises(RuntimeError, match="a task failed"):
        driver(sink, broker, log)(FakeFrame(["a"]), 0)
    assert "etl-9-0" in {id_of(identity) for identity in broker.open()}


def test_what_is_found_decided_is_not_settled_by_a_superseded_driver(broker, log):
    """Somebody else may have found it replayed by now."""
    promise(broker, log, FakeFrame(["a"], ["b"]))
    late = driver(FakeSink(broker), broker, log, name="late")
    of_batch = log.of_batch

    def outrun(batch: int) -> Any:
        found = of_batch(batch)
        take_term(log._store, taken_by="another")
        return found

    log.of_batch = outrun
    with pytest.raises(SupersededError):
        late(FakeFrame(["a"], ["b"]), 0)
    assert broker.visible() == []


def test_leftovers_are_listed_before_the_decision(broker, log, monkeypatch):
    """Rule 5: a successor may open its own as soon as we have looked for the last time."""
    asked: list[str] = []
    record, listing = log.record, FakeParticipant.open

    def listed(*given: Any, **known: Any) -> Any:
        asked.append("list")
        return listing(*given, **known)

    def recorded(decision: Decision) -> bool:
        asked.append(decision.verdict.name)
        return bool(record(decision))

    monkeypatch.setattr(FakeParticipant, "open", listed)
    monkeypatch.setattr(log, "record", recorded)
    driver(FakeSink(broker), broker, log)(FakeFrame(["a"]), 0)
    assert asked == ["ABORT", "list", "COMMIT"]


def test_what_tasks_prepared_is_known_without_a_listing_and_does_not_stay_open(
    broker, log, monkeypatch
):
    """Postgres would hold its locks until somebody starts the query again."""

    def away(*_given: Any, **_known: Any) -> Any:
        raise KafkaUnavailableError("no broker answers")

    monkeypatch.setattr(FakeParticipant, "open", away)
    with pytest.raises(KafkaUnavailableError):
        driver(FakeSink(broker), broker, log)(FakeFrame(["a"], ["b"]), 0)
    assert broker.open() == []
    assert log.of_batch(0)[-1].reason == "failed: KafkaUnavailableError"


def test_where_the_listing_fails_only_who_has_sealed_the_attempt_aborts(broker, log, monkeypatch):
    """Rule 5: the term is newer by then, and the place of our seal may be one that was pruned."""

    def away(*_given: Any, **_known: Any) -> Any:
        take_term(log._store, taken_by="another")
        raise KafkaUnavailableError("no broker answers")

    monkeypatch.setattr(FakeParticipant, "open", away)
    with pytest.raises(KafkaUnavailableError):
        driver(FakeSink(broker), broker, log)(FakeFrame(["a"]), 0)
    assert len(broker.open()) == 1


def test_what_a_successor_opens_after_our_decision_is_no_leftover_of_ours(broker, log, monkeypatch):
    """Rule 5: we sleep right behind the decision; the successor settles it and goes on."""
    theirs = FakeSink(broker)
    record = log.record

    def taken_over(decision: Decision) -> bool:
        stands = record(decision)
        if decision.verdict is Verdict.COMMIT and decision.decided_by == "sleeper":
            successor = driver(theirs, broker, log, name="successor")
            successor(FakeFrame(["a"]), 0)
            theirs.before_return = killed
            with pytest.raises(Killed):
                successor(FakeFrame(["b"], ["c"]), 1)
        return bool(stands)

    monkeypatch.setattr(log, "record", taken_over)
    with pytest.raises(SupersededError, match="a driver with term 2 has started since"):
        driver(FakeSink(broker), broker, log, name="sleeper")(FakeFrame(["a"]), 0)
    assert len(broker.open()) == 2, "they may be decided by now"
    assert broker.visible() == ["a"]


@pytest.mark.parametrize(
    ("ruling", "visible"), [(Outcome.COMMITTED, ["b"]), (Outcome.ABORTED, ["a", "b"])]
)
def test_what_a_person_ruled_is_followed(broker, log, ruling, visible):
    promise(broker, log, FakeFrame(["a"], ["b"]))
    forgotten, kept = broker.open()
    broker.end(forgotten, Outcome.ABORTED)
    broker.end(kept, Outcome.COMMITTED)
    broker.unknown = {forgotten}
    resumed = driver(
        FakeSink(broker), broker, log, rulings=lambda unknown: dict.fromkeys(unknown, ruling)
    )
    resumed(FakeFrame(["a"], ["b"]), 0)
    assert broker.visible() == visible
