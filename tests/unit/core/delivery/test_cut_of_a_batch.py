"""When a driver takes the cut of a batch: once readers have all of it."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.core.protocol.promise import Promise
from airflow_eos.errors import PromiseLostError
from tests.unit.core.delivery.driving import decision_log, driver
from tests.unit.core.delivery.fakes import FakeBroker, FakeFrame, FakeSink

ROWS = FakeFrame(["a"], ["b"])


class Cuts:
    """What a reader finds at the moment of each cut, and what the cut is told."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.told: list[Promise] = []
        self.seen: list[list[str]] = []

    def __call__(self, promise: Promise, accepted: Any) -> None:
        assert accepted is None
        assert self.broker.open() == []
        self.told.append(promise)
        self.seen.append(self.broker.visible())


class KilledError(BaseException):
    """SIGKILL: no handler sees it."""


def killed(*_: Any) -> None:
    raise KilledError


@pytest.fixture
def cuts() -> Cuts:
    return Cuts(FakeBroker())


def test_a_cut_is_taken_once_all_rows_of_its_batch_are_visible(cuts: Cuts) -> None:
    batch = driver(FakeSink(cuts.broker), cuts.broker, decision_log(), cut=cuts)
    batch(ROWS, 0)
    batch(FakeFrame(["c"]), 1)
    assert cuts.seen == [["a", "b"], ["a", "b", "c"]]
    assert [each.batch_id for each in cuts.told] == [0, 1]
    assert len(cuts.told[0].works) == 2


def test_killed_between_settle_and_cut_it_is_taken_by_the_next_driver(cuts: Cuts) -> None:
    log = decision_log()
    with pytest.raises(KilledError):
        driver(FakeSink(cuts.broker), cuts.broker, log, cut=killed)(ROWS, 0)
    driver(FakeSink(cuts.broker), cuts.broker, log, name="driver 2", cut=cuts)(ROWS, 0)
    assert cuts.seen == [["a", "b"]]
    assert len(cuts.told[0].works) == 2


def test_a_batch_that_lost_rows_has_no_cut_before_they_are_replayed(cuts: Cuts) -> None:
    """And that cut knows the work of both decisions: each is somewhere in the output."""
    log = decision_log()
    sink = FakeSink(cuts.broker)

    def one_is_lost() -> None:
        cuts.broker.end(cuts.broker.open()[0], Outcome.ABORTED)

    sink.before_return = one_is_lost
    with pytest.raises(PromiseLostError):
        driver(sink, cuts.broker, log, cut=cuts)(ROWS, 0)
    assert cuts.told == []
    driver(FakeSink(cuts.broker), cuts.broker, log, name="driver 2", cut=cuts)(ROWS, 0)
    assert cuts.seen == [["a", "b"]]
    assert [len(each.works) for each in cuts.told[0].commits] == [2, 1]
