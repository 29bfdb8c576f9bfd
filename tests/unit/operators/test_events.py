"""The emitter against Airflow's border: what is told is read from what stands."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSkipException,
    TaskDeferred,
)
from airflow.sdk import DAG, Asset

from airflow_eos import cuts
from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.cuts import CutLog
from airflow_eos.core.checkpoint.progress import StateSize, write_state_size
from airflow_eos.errors import CheckpointError, ConfigurationError, StoreError
from airflow_eos.events import SettledEvent
from airflow_eos.operators.events import EmitCompleteHoursOperator, EmitSettledBatchesOperator
from airflow_eos.triggers.settled import SettledBatchesTrigger
from tests.support.by_asset import ByAsset
from tests.support.settled_logs import SettledLogs

ASSET = Asset("orders.settled")


class Stored(list[Any]):
    """The events of an asset, as Airflow gives them to a task: by time stamp, ``before`` too."""

    asked = 0

    def ascending(self, *, ascending: bool) -> Asked:
        assert not ascending
        self.asked += 1
        return Asked(self)


class Asked:
    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self._count = 0
        self._before = datetime.max.replace(tzinfo=UTC)

    def limit(self, count: int) -> Asked:
        self._count = count
        return self

    def before(self, before: str) -> Asked:
        self._before = datetime.fromisoformat(before)
        return self

    def __iter__(self) -> Iterator[Any]:
        found = [each for each in self._stored if each.timestamp <= self._before]
        newest_first = sorted(found, key=lambda each: each.timestamp, reverse=True)
        return iter(newest_first[: self._count])


class Outlet:
    def __init__(self) -> None:
        self.extra: dict[str, Any] = {}
        self.added: list[dict[str, Any]] = []

    def add(self, asset: Asset, extra: dict[str, Any]) -> None:
        assert asset == ASSET
        self.added.append(extra)


class Notes(dict[str, Any]):
    """Airflow's store for an asset."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value


class Airflow:
    """What stands in its database; a try's events are stored with its success, or not at all."""

    def __init__(self) -> None:
        self.stored: list[Any] = Stored()
        self.notes = Notes()

    def run(
        self, task: EmitSettledBatchesOperator, *, dies: bool = False, woken: bool = False
    ) -> Any:
        outlet = Outlet()
        context: Any = {
            "inlet_events": ByAsset(ASSET, self.stored),
            "outlet_events": ByAsset(task.outlets[0], outlet),
            "asset_state_store": ByAsset(ASSET, self.notes),
        }
        answer = task.execute_complete(context, {"error": None}) if woken else task.execute(context)
        for extra in outlet.added or [outlet.extra]:
            if not dies:
                self.store(extra, task.dag_id, task.task_id)
        return answer

    def store(
        self, extra: Any, dag_id: str = "d", task_id: str = "emit", *, late: float = 0
    ) -> None:
        """``late``: seconds that the clock of this API server is behind."""
        told = SimpleNamespace(
            extra=extra,
            timestamp=datetime.now(UTC) - timedelta(seconds=late),
            source_dag_id=dag_id,
            source_task_id=task_id,
        )
        self.stored.append(told)

    def told(self) -> list[tuple[int, int]]:
        events = [SettledEvent.from_extra(each.extra) for each in self.stored]
        return [(event.from_batch, event.to_batch) for event in events if event]


@pytest.fixture
def airflow() -> Airflow:
    return Airflow()


@pytest.fixture
def logs(tmp_path) -> SettledLogs:
    return SettledLogs(tmp_path)


def emitter(logs: SettledLogs, dag_id: str = "d", **other: Any) -> EmitSettledBatchesOperator:
    with DAG(dag_id, schedule=None):
        return EmitSettledBatchesOperator(
            task_id="emit", asset=ASSET, checkpoint_location=str(logs.folder), **other
        )


def test_what_is_settled_between_two_runs_is_one_event(airflow, logs):
    logs.settle(3)
    assert airflow.run(emitter(logs)) == [f"{logs.pipeline}/0-2"]
    logs.settle(2)
    airflow.run(emitter(logs))
    assert airflow.told() == [(0, 2), (3, 4)]


@pytest.mark.parametrize("each_batch", [False, True])
def test_an_event_carries_the_cut_after_its_last_batch(airflow, logs, each_batch):
    """So who is started by it reads what it tells, however far the pipeline is by then."""
    logs.settle(3)
    store = CheckpointStore.open(logs.folder)
    for batch in (0, 1, 2):
        cut = cuts.Cut(batch_id=batch, pipeline="", incomplete=None, positions={})
        CutLog(store).record(cut)
    airflow.run(emitter(logs, each_batch=each_batch))
    found = [cuts.from_event(each.extra) for each in airflow.stored]
    assert [each.batch_id for each in found] == ([0, 1, 2] if each_batch else [2])
    assert found[-1] == cuts.latest(str(logs.folder))


def test_each_batch_is_an_event_where_it_is_asked_for(airflow, logs):
    logs.settle(3)
    airflow.run(emitter(logs, each_batch=True))
    assert airflow.told() == [(0, 0), (1, 1), (2, 2)]


def test_killed_before_its_success_the_next_try_tells_the_same(airflow, logs):
    logs.settle(3)
    first = airflow.run(emitter(logs), dies=True)
    assert airflow.run(emitter(logs)) == first
    assert airflow.told() == [(0, 2)]


@pytest.mark.parametrize("settled", [0, 2])
def test_with_nothing_due_it_is_skipped_and_tells_no_empty_event(airflow, logs, settled):
    logs.settle(settled)
    if settled:
        airflow.run(emitter(logs))
    with pytest.raises(AirflowSkipException):
        airflow.run(emitter(logs))
    assert len(airflow.stored) == bool(settled)


def test_deferrable_it_waits_for_the_next_batch_and_looks_again_after(airflow, logs):
    logs.settle(2)
    task = emitter(logs, deferrable=True)
    airflow.run(task)
    with pytest.raises(TaskDeferred) as deferred:
        airflow.run(task)
    trigger = deferred.value.trigger
    assert isinstance(trigger, SettledBatchesTrigger)
    assert (trigger.after, deferred.value.method_name) == (1, "execute_complete")


def test_events_are_not_closer_to_each_other_than_asked(airflow, logs):
    logs.settle(2)
    task = emitter(logs, deferrable=True, every=timedelta(hours=1))
    airflow.run(task)
    logs.settle(1)
    with pytest.raises(TaskDeferred) as deferred:
        airflow.run(task)
    told_ms = airflow.stored[0].timestamp.timestamp() * 1000
    trigger = deferred.value.trigger
    assert abs(trigger.not_before_ms - told_ms - 3_600_000) <= 1
    assert trigger.at_most_s == 3_600


def test_events_are_not_closer_where_nobody_waits_for_them_either(airflow, logs):
    """A schedule of a minute; and a clock that was ahead once silences nobody."""
    task = emitter(logs, every=timedelta(hours=1))
    logs.settle(2)
    airflow.run(task)
    logs.settle(1)
    with pytest.raises(AirflowSkipException, match="is due at"):
        airflow.run(task)
    airflow.stored[0].timestamp += timedelta(days=3650)
    airflow.run(task)
    assert airflow.told() == [(0, 1), (2, 2)]


def test_an_api_servers_clock_that_was_ahead_once_lets_nobody_wait_for_it(airflow, logs):
    """Events are dated by its clock: by a wrong year the emitter would be silent until then."""
    logs.settle(2)
    task = emitter(logs, deferrable=True, every=timedelta(seconds=10))
    airflow.run(task)
    airflow.stored[0].timestamp += timedelta(days=3650)
    logs.settle(1)
    with pytest.raises(TaskDeferred) as deferred:
        airflow.run(task)
    assert deferred.value.trigger.at_most_s == 10
    airflow.run(task, woken=True)
    assert airflow.told() == [(0, 1), (2, 2)]


def test_a_second_emitter_is_refused_since_it_would_tell_batches_twice(airflow, logs):
    logs.settle(2)
    airflow.run(emitter(logs))
    logs.settle(1)
    with pytest.raises(AirflowFailException, match=r"d\.emit emitted event .*former_emitter"):
        airflow.run(emitter(logs, "renamed"))
    airflow.run(emitter(logs, "renamed", former_emitter="d.emit"))
    assert airflow.told() == [(0, 1), (2, 2)]


def test_an_emitter_of_another_pipeline_is_refused_since_it_would_hide_events(airflow, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first, second = SettledLogs(tmp_path / "a"), SettledLogs(tmp_path / "b")
    first.settle(2)
    second.settle(2)
    airflow.run(emitter(first))
    with pytest.raises(AirflowFailException, match=r"d\.emit emitted event .*former_emitter"):
        airflow.run(emitter(second, "d2"))


@pytest.mark.parametrize("late", [59 * 60, 0])
def test_the_newest_event_is_found_however_many_have_a_later_time(airflow, logs, late):
    """An API server whose clock is behind stored it; others, ahead, stored what is older."""
    logs.settle(3)
    airflow.run(emitter(logs, each_batch=True))
    newest = airflow.stored.pop()
    airflow.stored *= 300
    airflow.store(newest.extra, late=late)
    logs.settle(1)
    airflow.run(emitter(logs, each_batch=True))
    assert airflow.told()[-1] == (3, 3)
    assert airflow.told().count((2, 2)) == 1


def test_our_event_is_found_behind_any_number_of_others_of_the_asset(airflow, logs):
    logs.settle(2)
    airflow.run(emitter(logs))
    for _ in range(500):
        airflow.store({"by": "hand"}, "", "")
    logs.settle(1)
    airflow.run(emitter(logs))
    assert SettledEvent.from_extra(airflow.stored[-1].extra).from_batch == 2


def test_it_looks_no_further_back_than_clocks_may_differ(airflow, logs):
    logs.settle(1)
    for _ in range(2000):
        airflow.store({"by": "hand"}, "", "", late=7200)
    airflow.run(emitter(logs))
    assert isinstance(airflow.stored, Stored)
    airflow.stored.asked = 0
    logs.settle(1)
    airflow.run(emitter(logs))
    assert airflow.stored.asked == 1


@pytest.mark.parametrize("each_batch", [False, True])
def test_where_airflow_gives_all_events_at_once_nothing_is_told_twice(airflow, logs, each_batch):
    """Airflow 3.1: a plain list, by time stamp."""
    airflow.stored = []
    for _ in range(3):
        logs.settle(2)
        airflow.run(emitter(logs, each_batch=each_batch))
    whole = [(0, 1), (2, 3), (4, 5)]
    assert airflow.told() == ([(n, n) for n in range(6)] if each_batch else whole)


def test_an_event_that_a_person_made_is_no_news_of_batches(airflow, logs):
    logs.settle(2)
    airflow.run(emitter(logs))
    airflow.store({"by": "hand"}, "", "")
    logs.settle(1)
    airflow.run(emitter(logs))
    assert airflow.told() == [(0, 1), (2, 2)]


def test_events_that_airflow_db_clean_removed_are_not_told_again(airflow, logs):
    logs.settle(2)
    airflow.run(emitter(logs))
    with pytest.raises(AirflowSkipException):  # which has seen that the event stands
        airflow.run(emitter(logs))
    airflow.stored.clear()
    logs.settle(1)
    airflow.run(emitter(logs))
    assert airflow.told() == [(2, 2)]


def test_a_note_is_made_of_what_stands_and_never_of_what_is_about_to(airflow, logs):
    """Else a task that dies between the note and its success loses the batches."""
    logs.settle(2)
    airflow.run(emitter(logs), dies=True)
    assert airflow.notes == {}


def test_an_older_copy_of_the_checkpoint_tells_nothing(airflow, logs):
    logs.settle(5)
    airflow.run(emitter(logs))
    for batch in range(2, 5):
        for folder in ("offsets", "commits"):
            (logs.folder / folder / str(batch)).unlink()
    with pytest.raises(CheckpointError, match="older copy"):
        airflow.run(emitter(logs))


def test_what_the_trigger_met_is_raised_as_a_look_would_have(logs):
    event = {"error": "the store is away", "raised": "StoreError"}
    with pytest.raises(StoreError, match="away"):
        emitter(logs).execute_complete({}, event)


@pytest.mark.parametrize("map_index", [0, 3])
def test_one_that_is_mapped_would_take_the_hours_of_one_pipeline_for_anothers(logs, map_index):
    mapped: Any = {"ti": SimpleNamespace(map_index=map_index)}
    with pytest.raises(AirflowFailException, match="not mapped"):
        emitter(logs).execute(mapped)


def test_one_task_at_a_time_tells_whatever_the_dag_says(logs):
    assert emitter(logs, max_active_tis_per_dag=5).max_active_tis_per_dag == 1


# --- hours


class Partitions(Outlet):
    """As from Airflow 3.3 on."""

    def __init__(self) -> None:
        super().__init__()
        self.partitions: list[str] = []

    def add_partitions(self, keys: list[str]) -> None:
        self.partitions += keys


def told_by(task: EmitCompleteHoursOperator, airflow: Airflow, outlet: Outlet) -> Any:
    """One try; the events of a success are stored with their partitions, or as one."""
    context: Any = {
        "inlet_events": ByAsset(ASSET, airflow.stored),
        "outlet_events": ByAsset(task.outlets[0], outlet),
        "asset_state_store": ByAsset(ASSET, airflow.notes),
    }
    answer = task.execute(context)
    for _ in getattr(outlet, "partitions", None) or [""]:
        airflow.store(outlet.extra, task.dag_id, task.task_id)
    return answer


@pytest.fixture
def by_minutes(tmp_path) -> SettledLogs:
    """Batches whose watermarks are 20 minutes apart, from 1970-01-01T00:00 on."""
    return SettledLogs(tmp_path, watermark_step_ms=20 * 60_000)


def hourly(logs: SettledLogs, **other: Any) -> EmitCompleteHoursOperator:
    given: dict[str, Any] = {"asset": ASSET, "since": datetime(1970, 1, 1, tzinfo=UTC), **other}
    with DAG("d", schedule=None):
        return EmitCompleteHoursOperator(
            task_id="emit",
            checkpoint_location=str(logs.folder),
            **given,
        )


@pytest.mark.parametrize("outlet", [Outlet, Partitions])
def test_each_hour_is_told_once_and_as_a_partition_where_there_are_any(airflow, by_minutes, outlet):
    by_minutes.settle(3)  # the watermark is at 00:40
    told_by(hourly(by_minutes), airflow, outlet())  # from here on hours are counted
    with pytest.raises(AirflowSkipException):
        told_by(hourly(by_minutes), airflow, outlet())
    by_minutes.settle(2)  # 01:20
    first = outlet()
    told_by(hourly(by_minutes), airflow, first)
    assert first.extra["hours"] == ["1970-01-01T00"]
    assert getattr(first, "partitions", ["1970-01-01T00"]) == ["1970-01-01T00"]
    with pytest.raises(AirflowSkipException):
        told_by(hourly(by_minutes), airflow, outlet())
    by_minutes.settle(6)  # 03:20
    second = outlet()
    told_by(hourly(by_minutes), airflow, second)
    assert second.extra["hours"] == ["1970-01-01T01", "1970-01-01T02"]
    told = [(each["from_batch"], each["to_batch"]) for each in (first.extra, second.extra)]
    assert told == [(3, 4), (5, 10)]
    assert second.extra["rows"] == {"sink": 60}


def test_hours_of_a_long_pause_are_told_in_parts_that_are_stored_in_time(airflow, by_minutes):
    """Airflow's server stores partitions one by one, and its client waits for 5 s."""
    by_minutes.settle(2)
    told_by(hourly(by_minutes), airflow, Partitions())
    by_minutes.settle(399)
    by_minutes.watermark_step_ms *= 2  # from the last one to the next: 134 hours at once
    by_minutes.settle(1)
    parts: list[list[str]] = []
    while sum(map(len, parts)) < 267:
        outlet = Partitions()
        told_by(hourly(by_minutes), airflow, outlet)
        parts.append(outlet.partitions)
    hours = [f"{datetime.fromtimestamp(n * 3600, UTC):%Y-%m-%dT%H}" for n in range(267)]
    assert [hour for part in parts for hour in part] == hours
    assert [len(part) for part in parts] == [50, 50, 33, 134], "a batch is in one event"
    with pytest.raises(AirflowSkipException):
        told_by(hourly(by_minutes), airflow, Partitions())


def test_how_many_rows_came_too_late_is_told_with_the_hours_or_said_to_be_unknown(
    airflow, by_minutes
):
    by_minutes.settle(4)
    outlet = Outlet()
    told_by(hourly(by_minutes), airflow, outlet)
    assert outlet.extra["late"] is None
    by_minutes.settle(3)
    size = {"rows": 1, "memory_bytes": 1, "file_bytes": 1, "tasks": 1, "update_ms": 1}
    size |= {"commit_ms": 1, "batch_ms": 1, "batch_id": 5, "late_rows": 3, "late_counted": 4}
    write_state_size(CheckpointStore.open(by_minutes.folder), StateSize(**size))
    told_by(hourly(by_minutes), airflow, outlet)
    assert outlet.extra["late"] == {"rows": 3, "counted_batches": 4, "up_to_batch": 5}


def test_a_new_checkpoint_tells_no_hour_again_and_leaves_none_out(airflow, by_minutes, tmp_path):
    """It has another pipeline's id, and ``since`` still stands in the DAG's file."""
    by_minutes.settle(8)  # 02:20
    told_by(hourly(by_minutes), airflow, Outlet())
    anew = SettledLogs(tmp_path / "anew", watermark_step_ms=20 * 60_000)
    assert anew.pipeline != by_minutes.pipeline
    anew.settle(9)  # 02:40
    with pytest.raises(AirflowSkipException):
        told_by(hourly(anew), airflow, Outlet())
    anew.settle(4)  # 04:00
    outlet = Outlet()
    told_by(hourly(anew), airflow, outlet)
    assert outlet.extra["hours"] == ["1970-01-01T02", "1970-01-01T03"]
    anew.settle(3)
    told_by(hourly(anew), airflow, outlet)
    assert outlet.extra["hours"] == ["1970-01-01T04"]


def test_nor_does_one_whose_predecessors_events_airflow_has_deleted(airflow, by_minutes, tmp_path):
    """``airflow db clean`` after a long pause; Airflow's note of the asset is left."""
    by_minutes.settle(8)  # 02:20
    told_by(hourly(by_minutes), airflow, Outlet())
    with pytest.raises(AirflowSkipException):
        told_by(hourly(by_minutes), airflow, Outlet())
    airflow.stored.clear()
    anew = SettledLogs(tmp_path / "anew", watermark_step_ms=20 * 60_000)
    anew.settle(13)  # 04:00
    outlet = Outlet()
    told_by(hourly(anew), airflow, outlet)
    assert outlet.extra["hours"] == ["1970-01-01T02", "1970-01-01T03"]


def test_an_hour_that_is_not_complete_is_waited_for_behind_what_was_looked_at(airflow, by_minutes):
    by_minutes.settle(2)
    told_by(hourly(by_minutes), airflow, Outlet())
    by_minutes.settle(1)  # 00:40
    with pytest.raises(TaskDeferred) as deferred:
        told_by(hourly(by_minutes, deferrable=True), airflow, Outlet())
    assert deferred.value.trigger.after == 2, "or it would wake at once, for ever"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"since": datetime(1970, 1, 1)}, "with its zone"),  # noqa: DTZ001 - just that
        ({"since": "1970-01-01T00:00:00+00:00"}, "with its zone"),
        ({"asset": "orders"}, "asset='orders': expected an instance of Asset"),
    ],
    ids=["no zone", "text", "name"],
)
def test_an_argument_of_another_class_is_refused_by_its_name(by_minutes, given, says):
    with pytest.raises(ConfigurationError, match=says):
        hourly(by_minutes, **given)
