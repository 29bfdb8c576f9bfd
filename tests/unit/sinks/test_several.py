"""Several participants in one decision: both or neither, and each gets back what it lost."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from airflow_eos.delivery.batch import ExactlyOnceBatch
from airflow_eos.delivery.port import TaskReport
from airflow_eos.errors import NonDeterministicReplayError, PromiseLostError
from airflow_eos.protocol.decision import Outcome
from airflow_eos.protocol.group import Group
from airflow_eos.protocol.participant import Member
from tests.support.authority import authority_of
from tests.unit.sinks.driving import commits, decision_log
from tests.unit.sinks.fakes import FakeBroker, FakeFrame, FakeParticipant, FakeSink

ROWS = FakeFrame(["a", "b"], [], ["c"])


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

    def participant(self) -> Group:
        members = []
        for name, broker in self.brokers.items():
            each = FakeParticipant(broker)
            each.members = (Member(name, "fake", {"at": name}),)
            members.append(each)
        return Group(members)


class Part(FakeSink):
    def __init__(self, broker: FakeBroker) -> None:
        super().__init__(broker)
        self.names = (broker.participant,)


@pytest.fixture
def both() -> Both:
    return Both()


@pytest.fixture
def log() -> Any:
    return decision_log()


def driver(both: Both, log: Any) -> Any:
    return ExactlyOnceBatch(
        both,  # type: ignore[arg-type]  # it reads nothing back
        both.participant(),
        log,
        authority_of(log._store, log),
        rulings=lambda _unknown: {},
        driver="a driver",
        on_phase=lambda _batch, _phase: None,
    )


ALL = {"orders": ["a", "b", "c"], "totals": ["a", "b", "c"]}
NOTHING: dict[str, list[str]] = {"orders": [], "totals": []}


class KilledError(BaseException):
    """SIGKILL: no handler sees it."""


def killed(*_: Any) -> Any:
    raise KilledError


def promised_and_killed(both: Both, log: Any) -> None:
    died = driver(both, log)
    died._settle = killed
    with pytest.raises(KilledError):
        died(ROWS, 0)
    assert both.visible() == NOTHING


def test_one_decision_names_the_work_of_all(both, log):
    driver(both, log)(ROWS, 0)
    assert both.visible() == ALL
    [decision] = commits(log)
    assert sorted(work.participant for work in decision.works) == ["orders"] * 2 + ["totals"] * 2


def test_neither_has_a_row_where_nothing_was_decided(both, log):
    """The second participant fails after the first has prepared."""
    both.sinks["totals"].before_return = lambda: (_ for _ in ()).throw(OSError("disk full"))
    with pytest.raises(OSError, match="disk full"):
        driver(both, log)(ROWS, 0)
    assert both.visible() == NOTHING
    assert commits(log) == []
    assert [broker.open() for broker in both.brokers.values()] == [[], []]


def test_both_have_all_after_a_driver_that_died_once_it_had_decided(both, log):
    promised_and_killed(both, log)
    driver(both, log)(ROWS, 0)
    assert both.visible() == ALL
    assert len(commits(log)) == 1


def test_what_one_of_them_lost_is_replayed_to_that_one_alone(both, log):
    promised_and_killed(both, log)
    for identity in both.brokers["orders"].open():
        both.brokers["orders"].end(identity, Outcome.ABORTED)
    driver(both, log)(ROWS, 0)
    assert both.visible() == ALL
    replay = commits(log)[1]
    assert {work.participant for work in replay.works} == {"orders"}


def test_of_each_what_it_lost_is_replayed(both, log):
    """One task's work of the first, another's of the second: equal content, other participants."""
    promised_and_killed(both, log)
    orders, totals = both.brokers.values()
    orders.end(orders.open()[0], Outcome.ABORTED)
    totals.end(totals.open()[1], Outcome.ABORTED)
    driver(both, log)(ROWS, 0)
    assert both.visible() == ALL
    lost = sorted((work.participant, work.rows) for work in commits(log)[1].works)
    assert lost == [("orders", 2), ("totals", 1)]


def test_rows_of_one_participant_do_not_stand_for_those_of_another(both, log):
    """Together they are as many and of the same content; one of them evaluates to others."""
    promised_and_killed(both, log)
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
        driver(both, log)(ROWS, 0)
    assert both.visible() == NOTHING


def test_a_replay_is_not_refused_for_rows_that_nobody_is_owed(both, log):
    """One lost its rows, which come again as they were; the other has its own, and would get others
    by now: it is not written again, so what it evaluates to changes nothing."""
    promised_and_killed(both, log)
    for identity in both.brokers["orders"].open():
        both.brokers["orders"].end(identity, Outcome.ABORTED)
    real: Any = both.sinks["totals"].prepare

    def others(rows: Any, *, only: Collection[int] | None = None) -> list[TaskReport]:
        rows.evaluations += 1
        reports: list[TaskReport] = real(FakeFrame(["x", "y"], [], ["z"]), only=only)
        return reports

    both.sinks["totals"].prepare = others
    driver(both, log)(ROWS, 0)
    assert both.visible() == ALL


def test_a_promise_that_one_of_them_lost_while_it_was_settled_is_no_end_of_the_batch(both, log):
    both.sinks["totals"].before_return = lambda: both.brokers["orders"].unknown.update(
        both.brokers["orders"].open()[:1]
    )
    with pytest.raises(PromiseLostError, match="1 of 4"):
        driver(both, log)(ROWS, 0)
