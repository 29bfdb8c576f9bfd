"""What Spark's planner is told, where the cluster says one thing now and another in a moment."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from airflow_eos.errors import TopicError
from airflow_eos.sources.stream import RangeStream

pytestmark = pytest.mark.unit

START = {"t": {"0": 5, "1": 7}}
BEFORE, NOW = {("t", 0): 9}, {("t", 0): 9, ("t", 1): 8}


class Told:
    """An input whose cluster says this, one answer after the other."""

    max_rows_per_task = None

    def __init__(self, *ends: dict[tuple[str, int], int]) -> None:
        self._ends = list(ends)

    def ends(self, _wire: Any) -> dict[tuple[str, int], int]:
        return self._ends.pop(0)


def planner(monkeypatch: pytest.MonkeyPatch, *ends: dict[tuple[str, int], int]) -> Any:
    monkeypatch.setattr(RangeStream, "_connected", lambda _self: None)
    return RangeStream(Told(*ends))  # type: ignore[arg-type]


@pytest.mark.parametrize("available_now", [False, True])
def test_a_partition_that_one_broker_does_not_know_yet_is_asked_for_again(
    monkeypatch, available_now
):
    plan = planner(monkeypatch, BEFORE, NOW)
    if available_now:
        plan.prepareForTriggerAvailableNow()
    end = {"t": {"0": 9, "1": 8}}
    assert plan.latestOffset(START, ReadAllAvailable()) == end
    if available_now:  # the target is the new one, and is not asked for again
        assert plan.latestOffset(end, ReadAllAvailable()) is end


def test_a_partition_that_is_gone_both_times_is_an_error(monkeypatch):
    plan = planner(monkeypatch, BEFORE, BEFORE)
    with pytest.raises(TopicError, match="Partition 1 of topic 't'"):
        plan.latestOffset(START, ReadAllAvailable())
