"""When a batch of one or several participants is decided, ended and called delivered."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pytest

from airflow_eos.core.checkpoint import Decision, DecisionLog, Verdict, take_term
from airflow_eos.core.delivery.batch import ExactlyOnceBatch
from airflow_eos.core.delivery.outputs import InPlanSink
from airflow_eos.core.delivery.port import TaskReport
from airflow_eos.core.delivery.task import by_our_clock
from airflow_eos.core.protocol.decision import Outcome, PreparedWork, WorkIdentity
from airflow_eos.core.protocol.participant import Member
from airflow_eos.core.protocol.participant_group import ParticipantGroup
from airflow_eos.errors import (
    DeliveryError,
    KafkaUnavailableError,
    NonDeterministicReplayError,
    PromiseLostError,
    SupersededError,
)
from tests.support.authority import LazyTasks, authority_of
from tests.support.pipelines import abort_of
from tests.unit.core.delivery.driving import commits, decision_log, driver
from tests.unit.core.delivery.fakes import FakeBroker, FakeFrame, FakeParticipant, FakeSink, id_of

ROWS = FakeFrame(["a"], ["b"], ["c"])


class Losing(FakeSink):
    """Some reports do not come, though their tasks have written."""

    def __init__(self, broker: FakeBroker, lost: Collection[int]) -> None:
        super().__init__(broker)
        self.lost = lost

    def tasks(self, rows: Any, *, only: Any = None, transactional: bool = True) -> Any:
        assert transactional
        assert only is None
        return LazyTasks(lambda: FakeSink.prepare(self, rows), lost=self.lost)


class Reporting(FakeSink):
    """Its tasks write as they should; the list of their reports is another one."""

    def __init__(
        self, broker: FakeBroker, change: Callable[[list[TaskReport]], list[TaskReport]]
    ) -> None:
        super().__init__(broker)
        self.change = change

    def prepare(self, rows: Any, *, only: Collection[int] | None = None) -> list[TaskReport]:
        return self.change(super().prepare(rows, only=only))


def require_refused(broker: FakeBroker, sink: Any) -> None:
    log = decision_log()
    batch = driver(sink, broker, log)
    with pytest.raises(DeliveryError, match="runs again"):
        batch(batch.streamed(ROWS), 0)
    assert commits(log) == []
    assert broker.visible() == []
    assert broker.open() == [], "what it wrote would keep readers waiting"


@pytest.mark.parametrize("lost", [{0}, {1}, {2}, {1, 2}, {0, 1, 2}], ids=str)
def test_a_batch_with_a_report_missing_is_not_decided_not_even_the_last_ones(lost):
    """Reports 0 and 1 of three look whole to whoever counts what came."""
    broker = FakeBroker()
    losing: Any = Losing(broker, lost)
    require_refused(broker, InPlanSink(losing))


@pytest.mark.parametrize(
    "change",
    [lambda all_of_them: all_of_them[1:], lambda all_of_them: [*all_of_them[:2], all_of_them[1]]],
    ids=["missing", "twice"],
)
def test_a_batch_whose_reports_do_not_fit_its_tasks_is_not_decided(change):
    broker = FakeBroker()
    require_refused(broker, Reporting(broker, change))


BEGAN_MS, ENDED_MS = 1_000_000, 1_010_000
"""The tasks of a batch, by the driver's clock."""


@pytest.mark.parametrize(
    ("ahead_ms", "known_ms"),
    [(0, 0), (3_000, 0), (-3_000, -2_000), (600_000, 596_000), (-600_000, -599_000)],
    ids=["same clocks", "ahead, as it may be", "a little behind", "ahead", "behind"],
)
def test_how_old_work_is_does_not_depend_on_the_clock_of_the_tasks_machine(ahead_ms, known_ms):
    """Opened 1 s after the tasks began, reported 4 s before the last of them ended."""
    opened_ms = BEGAN_MS + 1_000 + ahead_ms
    work = PreparedWork("kafka", "sink", "k", 1, "f", opened_ms, 60_000, {})
    report = TaskReport(0, 1, "f", work, reported_at_ms=ENDED_MS - 4_000 + ahead_ms)
    dated = by_our_clock(report, BEGAN_MS, ENDED_MS).work
    assert dated is not None
    assert dated.opened_at_ms == opened_ms - known_ms
    assert BEGAN_MS <= dated.opened_at_ms <= ENDED_MS


def test_work_that_nothing_ends_keeps_the_date_of_its_own_system():
    work = PreparedWork("postgres", "sink", "k", 1, "f", 5, None, {})
    report = TaskReport(0, 1, "f", work, reported_at_ms=9)
    assert by_our_clock(report, BEGAN_MS, ENDED_MS) == report


# --- What a driver may end, and when it may say that a batch is delivered: nothing is guessed -----


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
        assert log.record(abort_of(0, attempt=attempt, nonce="a" * 32))
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


# --- What says how far a pipeline is follows the rows: never before readers have all of a batch ---


class Says:
    """A :class:`OffsetCommit` that says the number of the batch; it lists nothing as open."""

    def works(self, batch_id: int, attempt: int, offsets: str) -> Sequence[PreparedWork]:
        assert offsets
        return (FakeBroker("says").prepare(f"says-{batch_id}-{attempt}", ()),)


class Watched(FakeParticipant):
    """Notes what readers have when it is said."""

    refuses = False

    def __init__(self, broker: FakeBroker, said: list[list[str]]) -> None:
        super().__init__(broker)
        self.said = said

    def commit(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        if not any(work.follows for work in works):
            return super().commit(works)
        assert all(work.follows for work in works), "never together with rows"
        self.said.append(self.broker.visible())
        said = Outcome.ABORTED if self.refuses else Outcome.COMMITTED
        return {work.identity: said for work in works}


def watched(broker: FakeBroker, log: DecisionLog, said: list[list[str]], **changes):
    running = driver(FakeSink(broker), broker, log, progress=Says(), **changes)
    running._participant = Watched(broker, said)
    return running


def test_it_is_named_by_the_decision_and_said_when_readers_have_all_rows(broker, log):
    said: list[list[str]] = []
    watched(broker, log, said)(FakeFrame(["a"], ["b"]), 0)
    [decision] = commits(log)
    assert [work.follows for work in decision.works] == [False, False, True]
    assert said == [["a", "b"]]


def test_it_is_said_of_a_batch_without_rows(broker, log):
    said: list[list[str]] = []
    watched(broker, log, said)(FakeFrame([], []), 0)
    assert said == [[]]


def test_it_is_not_said_of_a_batch_that_is_lost_in_part(broker, log):
    said: list[list[str]] = []
    running = watched(broker, log, said)
    running._sink.before_return = lambda: broker.end(broker.open()[-1], Outcome.ABORTED)
    with pytest.raises(PromiseLostError):
        running(FakeFrame(["a"], ["b"]), 0)
    assert said == []


def test_it_is_said_after_a_replay_and_not_before(broker, log):
    said: list[list[str]] = []
    died = watched(broker, log, said, name="killed")
    died._settle = lambda *_: _kill()
    with pytest.raises(Killed):
        died(FakeFrame(["a"], ["b"]), 0)
    lost = next(each for each in broker.open() if broker.rows[each] == ("a",))
    broker.end(lost, Outcome.ABORTED)
    watched(broker, log, said, name="replays")(FakeFrame(["a"], ["b"]), 0)
    assert said == [["a", "b"]]


def test_it_is_said_by_the_next_driver_where_only_that_is_missing(broker, log):
    said: list[list[str]] = []
    died = watched(broker, log, said, name="killed")
    died._follow = lambda *_: _kill()
    with pytest.raises(Killed):
        died(FakeFrame(["a"]), 0)
    watched(broker, log, said, name="finds it whole")(FakeFrame(["a"]), 0)
    assert said == [["a"]]
    assert len(commits(log)) == 1


def test_a_batch_is_not_over_before_it_is_said(broker, log):
    running = watched(broker, log, [])
    running._participant.refuses = True
    with pytest.raises(DeliveryError, match="does not say so"):
        running(FakeFrame([]), 0)


def _kill() -> None:
    raise Killed


# --- Several participants in one decision: both or neither, and each gets back what it lost -------


ROWS_OF_BOTH = FakeFrame(["a", "b"], [], ["c"])


class Both:
    """Two fake sinks in one pass of a task, as ``Outputs`` makes it."""

    names = ("orders", "totals")

    def __init__(self) -> None:
        self.brokers = {name: FakeBroker(name) for name in self.names}
        self.sinks = {name: Part(self.brokers[name]) for name in self.names}

    def streamed(self, df: Any) -> Any:
        return df

    def rows(self, df: Any) -> Any:
        return df

    def prepare(self, rows: Any, *, only: Collection[int] | None = None) -> list[TaskReport]:
        reports = [each for sink in self.sinks.values() for each in sink.prepare(rows, only=only)]
        rows.evaluations -= len(self.sinks) - 1  # all in one pass
        return reports

    def part(self, name: str) -> Any:
        return self.sinks[name]

    def visible(self) -> dict[str, list[str]]:
        return {name: broker.visible() for name, broker in self.brokers.items()}

    def participant(self) -> ParticipantGroup:
        members = []
        for name, broker in self.brokers.items():
            each = FakeParticipant(broker)
            each.members = (Member(name, "fake", {"at": name}),)
            members.append(each)
        return ParticipantGroup(members)


class Part(FakeSink):
    def __init__(self, broker: FakeBroker) -> None:
        super().__init__(broker)
        self.names = (broker.participant,)


@pytest.fixture
def both() -> Both:
    return Both()


@pytest.fixture
def log_of_both() -> Any:
    return decision_log()


def driver_of_both(
    both: Both, log: Any, on_phase: Any = lambda _batch, _phase: None, kept: Any = None
) -> Any:
    return ExactlyOnceBatch(
        both,  # type: ignore[arg-type]  # it reads nothing back
        both.participant(),
        log,
        authority_of(log._store, log),
        rulings=lambda _unknown: {},
        driver="a driver",
        on_phase=on_phase,
        kept=kept,
    )


ALL = {"orders": ["a", "b", "c"], "totals": ["a", "b", "c"]}
NOTHING: dict[str, list[str]] = {"orders": [], "totals": []}


class KilledError(BaseException):
    """SIGKILL: no handler sees it."""


def killed_with_both(*_: Any) -> Any:
    raise KilledError


def promised_and_killed(both: Both, log: Any) -> None:
    died = driver_of_both(both, log)
    died._settle = killed_with_both
    with pytest.raises(KilledError):
        died(ROWS_OF_BOTH, 0)
    assert both.visible() == NOTHING


def test_one_decision_names_the_work_of_all(both, log_of_both):
    driver_of_both(both, log_of_both)(ROWS_OF_BOTH, 0)
    assert both.visible() == ALL
    [decision] = commits(log_of_both)
    assert sorted(work.participant for work in decision.works) == ["orders"] * 2 + ["totals"] * 2


def test_neither_has_a_row_where_nothing_was_decided(both, log_of_both):
    """The second participant fails after the first has prepared."""
    both.sinks["totals"].before_return = lambda: (_ for _ in ()).throw(OSError("disk full"))
    with pytest.raises(OSError, match="disk full"):
        driver_of_both(both, log_of_both)(ROWS_OF_BOTH, 0)
    assert both.visible() == NOTHING
    assert commits(log_of_both) == []
    assert [broker.open() for broker in both.brokers.values()] == [[], []]


def test_both_have_all_after_a_driver_that_died_once_it_had_decided(both, log_of_both):
    promised_and_killed(both, log_of_both)
    driver_of_both(both, log_of_both)(ROWS_OF_BOTH, 0)
    assert both.visible() == ALL
    assert len(commits(log_of_both)) == 1


def test_what_one_of_them_lost_is_replayed_to_that_one_alone(both, log_of_both):
    promised_and_killed(both, log_of_both)
    for identity in both.brokers["orders"].open():
        both.brokers["orders"].end(identity, Outcome.ABORTED)
    driver_of_both(both, log_of_both)(ROWS_OF_BOTH, 0)
    assert both.visible() == ALL
    replay = commits(log_of_both)[1]
    assert {work.participant for work in replay.works} == {"orders"}


def test_of_each_what_it_lost_is_replayed(both, log_of_both):
    """One task's work of the first, another's of the second: equal content, other participants."""
    promised_and_killed(both, log_of_both)
    orders, totals = both.brokers.values()
    orders.end(orders.open()[0], Outcome.ABORTED)
    totals.end(totals.open()[1], Outcome.ABORTED)
    driver_of_both(both, log_of_both)(ROWS_OF_BOTH, 0)
    assert both.visible() == ALL
    lost = sorted((work.participant, work.rows) for work in commits(log_of_both)[1].works)
    assert lost == [("orders", 2), ("totals", 1)]


def test_rows_of_one_participant_do_not_stand_for_those_of_another(both, log_of_both):
    """Together they are as many and of the same content; one of them evaluates to others."""
    promised_and_killed(both, log_of_both)
    for broker in both.brokers.values():
        for identity in broker.open():
            broker.end(identity, Outcome.ABORTED)

    real: Any = both.prepare

    def exchanged(rows: Any, *, only: Collection[int] | None = None) -> list[TaskReport]:
        if only is None:
            whole: list[TaskReport] = real(rows, only=only)
            return whole
        return [
            *both.sinks["orders"].prepare(FakeFrame(["a", "b"], ["c"], ["c"]), only=only),
            *both.sinks["totals"].prepare(FakeFrame(["a", "b"], [], []), only=only),
        ]

    both.prepare = exchanged
    with pytest.raises(NonDeterministicReplayError):
        driver_of_both(both, log_of_both)(ROWS_OF_BOTH, 0)
    assert both.visible() == NOTHING


def test_a_replay_is_not_refused_for_rows_that_nobody_is_owed(both, log_of_both):
    """One lost its rows, which come again as they were; the other has its own, and would get others
    by now: it is not written again, so what it evaluates to changes nothing."""
    promised_and_killed(both, log_of_both)
    for identity in both.brokers["orders"].open():
        both.brokers["orders"].end(identity, Outcome.ABORTED)
    real: Any = both.sinks["totals"].prepare

    def others(rows: Any, *, only: Collection[int] | None = None) -> list[TaskReport]:
        rows.evaluations += 1
        reports: list[TaskReport] = real(FakeFrame(["x", "y"], [], ["z"]), only=only)
        return reports

    both.sinks["totals"].prepare = others
    driver_of_both(both, log_of_both)(ROWS_OF_BOTH, 0)
    assert both.visible() == ALL


def test_a_promise_that_one_of_them_lost_while_it_was_settled_is_no_end_of_the_batch(
    both, log_of_both
):
    both.sinks["totals"].before_return = lambda: both.brokers["orders"].unknown.update(
        both.brokers["orders"].open()[:1]
    )
    with pytest.raises(PromiseLostError, match="1 of 4"):
        driver_of_both(both, log_of_both)(ROWS_OF_BOTH, 0)
