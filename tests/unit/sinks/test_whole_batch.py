"""A batch is decided only when every task of it has reported what it wrote, once."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest

from airflow_eos.delivery.outputs import InPlanSink
from airflow_eos.delivery.port import TaskReport
from airflow_eos.delivery.task import by_our_clock
from airflow_eos.errors import DeliveryError
from airflow_eos.protocol.decision import PreparedWork
from tests.support.planned import LazyTasks
from tests.unit.sinks.driving import commits, decision_log, driver
from tests.unit.sinks.fakes import FakeBroker, FakeFrame, FakeSink

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
