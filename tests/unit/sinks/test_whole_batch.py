"""A batch is decided only when every task of it has reported what it wrote, once."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest

from airflow_eos.delivery.outputs import InPlanSink
from airflow_eos.delivery.port import TaskReport
from airflow_eos.errors import DeliveryError
from tests.support.planned import LazyTasks
from tests.unit.sinks.driving import commits, decision_log, driver
from tests.unit.sinks.fakes import FakeBroker, FakeFrame, FakeSink

pytestmark = pytest.mark.unit

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
