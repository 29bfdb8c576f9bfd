"""What says how far a pipeline is follows the rows: never before readers have all of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from airflow_eos.checkpoint import DecisionLog
from airflow_eos.errors import DeliveryError, PromiseLostError
from airflow_eos.protocol.decision import Outcome, PreparedWork, WorkIdentity
from tests.unit.sinks.driving import commits, decision_log, driver
from tests.unit.sinks.fakes import FakeBroker, FakeFrame, FakeParticipant, FakeSink


class Killed(BaseException):
    """SIGKILL, as far as the code under test can tell: nobody handles it."""


class Says:
    """A :class:`Progress` that says the number of the batch; it lists nothing as open."""

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


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
def log() -> DecisionLog:
    return decision_log()


def watched(broker: FakeBroker, log: DecisionLog, said: list[list[str]], **changes):
    running = driver(FakeSink(broker), broker, log, progress=Says(), **changes)
    running._participant = running._following._participant = Watched(broker, said)
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
    died._following.commit = lambda *_: _kill()
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
