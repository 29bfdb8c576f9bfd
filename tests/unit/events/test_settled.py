"""Each settled batch is in exactly one event, whatever happens between two looks."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.rulings import accept
from airflow_eos.errors import CheckpointError, CheckpointFormatError
from airflow_eos.events import (
    Settled,
    SettledBatch,
    SettledEvent,
    behind,
    crosses,
    events_since,
    hours_completed,
    newest_of,
    newest_settled,
    read_settled,
)
from tests.support.settled_logs import ROWS, SettledLogs


def batch(number: int) -> SettledBatch:
    return SettledBatch(number, {"0": {"t": {"0": number + 1}}}, {"sink": 5}, number, number)


def found(*numbers: int, pipeline: str = "p") -> Settled:
    newest = max(numbers, default=None)
    return Settled(pipeline, newest, {"0": {"t": {"0": 0}}}, tuple(map(batch, numbers)))


def covered(events) -> list[int]:
    return [n for event in events for n in range(event.from_batch, event.to_batch + 1)]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine
@given(st.lists(st.integers(0, 12), min_size=1, max_size=8), st.booleans(), st.integers(1, 4))
def test_looks_at_any_times_tell_each_batch_once_and_without_a_gap(steps, each_batch, at_most):
    told: list[SettledEvent] = []
    newest = -1
    for step in [*steps, 0, 0, 0]:
        newest += step
        last = newest_of("p", [event.as_extra() for event in told])
        looked = found(*range(newest + 1))
        told += events_since(last, looked, each_batch=each_batch, at_most=at_most)
    last = told[-1] if told else None
    told += events_since(last, looked, each_batch=each_batch)
    assert not events_since(told[-1] if told else None, looked), "all has been told"
    assert covered(told) == list(range(newest + 1))
    assert all(before.end == after.start for before, after in itertools.pairwise(told))
    assert sum((event.rows or {})["sink"] for event in told) == 5 * (newest + 1)


def test_what_spark_has_purged_is_in_the_range_of_the_first_and_its_rows_are_not_guessed():
    [first] = events_since(None, found(7, 8))
    assert (first.from_batch, first.to_batch, first.rows) == (0, 8, None)
    assert first.start == {"0": {"t": {"0": 0}}}
    events = events_since(None, found(7, 8), each_batch=True)
    assert [(e.from_batch, e.to_batch) for e in events] == [(0, 7), (8, 8)]
    assert [e.rows for e in events] == [None, {"sink": 5}]


def test_a_batch_without_a_decision_has_no_number_of_rows():
    silent = replace(batch(1), rows=None)
    looked = replace(found(0, 1), batches=(batch(0), silent))
    assert events_since(None, looked)[0].rows is None


def test_an_older_copy_of_the_checkpoint_is_refused():
    [last] = events_since(None, found(*range(9)))
    with pytest.raises(CheckpointError, match=r"batch 8 .* is 3: an older copy"):
        events_since(last, found(*range(4)))


def test_a_new_checkpoint_begins_anew():
    [last] = events_since(None, found(*range(9)))
    [event] = events_since(last, found(0, pipeline="q"))
    assert (event.pipeline, event.from_batch, event.to_batch) == ("q", 0, 0)
    assert event.start == {"0": {"t": {"0": 0}}}


def test_the_newest_is_by_batch_since_clocks_differ_and_by_pipeline_since_others_write_too():
    [old] = events_since(None, found(0, 1))
    [new] = events_since(old, found(2, 3))
    [other] = events_since(None, found(*range(50), pipeline="q"))
    foreign = [None, {}, {"a": 1}, {**new.as_extra(), "key": "p/0-99"}]
    extras = [other.as_extra(), new.as_extra(), old.as_extra(), *foreign]
    assert newest_of("p", extras) == new


def test_exactly_one_event_crosses_an_offset():
    events = events_since(None, found(*range(6)), each_batch=True)
    crossing = [e.to_batch for e in events if crosses(e, {"t": {0: 4}})]
    assert crossing == [3]
    assert not [e for e in events if crosses(e, {"other": {0: 1}})]


def test_behind_says_how_much_is_missing_of_each_partition():
    end = {"0": {"t": {"0": 5}}, "1": "{not kafka}"}
    assert behind(end, {"t": {0: 5}}) == {}
    assert behind(end, {"t": {"0": 7, "1": 2}, "u": {"0": 1}}) == {
        "t": {"0": 2, "1": 2},
        "u": {"0": 1},
    }


def test_rows_of_a_topic_that_is_read_twice_are_there_once_both_have_read_them():
    """As where a query joins a topic with itself; a person acted while the slower one lagged."""
    end = {"0": {"t": {"0": 9}}, "1": {"t": {"0": 5}, "u": {"0": 1}}}
    assert behind(end, {"t": {0: 7}}) == {"t": {"0": 2}}
    assert behind(end, {"t": {0: 5}, "u": {0: 1}}) == {}


def test_sources_that_share_a_topics_partitions_out_are_waited_for_each_in_its_own():
    """By ``assign``: neither ever reads the other's, and who waits for both waited for ever."""
    end = {"0": {"t": {"0": 9}}, "1": {"t": {"1": 5}}}
    assert behind(end, {"t": {0: 9, 1: 5}}) == {}
    assert behind(end, {"t": {0: 9, 1: 6, 2: 1}}) == {"t": {"1": 1, "2": 1}}


def test_the_logs_of_a_checkpoint_are_read_as_they_are(tmp_path):
    logs = SettledLogs(tmp_path)
    store = CheckpointStore.open(tmp_path)
    assert newest_settled(store) is None
    assert read_settled(store, after=None).batches == ()
    logs.settle(3)
    logs.plan(3)  # in flight: planned and not settled
    looked = read_settled(store, after=0)
    assert (looked.pipeline, looked.newest) == (logs.pipeline, 2)
    assert looked.began == {"0": {"orders": {"0": 0}}}
    assert [each.batch_id for each in looked.batches] == [1, 2]
    last = looked.batches[-1]
    assert last.end == {"0": {"orders": {"0": 3 * ROWS}}}
    assert (last.rows, last.watermark_ms) == ({"sink": ROWS}, 2)
    assert last.settled_at_ms > 1_600_000_000_000


def test_where_sparks_log_was_replaced_the_decision_says_how_far_the_batch_went(tmp_path):
    logs = SettledLogs(tmp_path)
    logs.settle(2)
    offsets = tmp_path / "offsets/1"
    offsets.write_text(offsets.read_text().replace(str(2 * ROWS), "999"))
    looked = read_settled(CheckpointStore.open(tmp_path), after=0)
    assert looked.batches[0].end == {"0": {"orders": {"0": 2 * ROWS}}}


def test_several_outputs_have_rows_each(tmp_path):
    logs = SettledLogs(tmp_path)
    logs.decide(0, logs.plan(0), {"clean": 7, "rejected": 3})
    logs.commit(0)
    [event] = events_since(None, read_settled(CheckpointStore.open(tmp_path), after=None))
    assert event.rows == {"clean": 7, "rejected": 3}


def test_rows_of_a_batch_that_a_person_let_go_on_without_some_are_not_told(tmp_path):
    """What was promised of it is more than readers have."""
    logs = SettledLogs(tmp_path)
    logs.settle(2)
    store = CheckpointStore.open(tmp_path)
    accept(store, 1, "any", missing={"sink": 3}, ruled_by="ada")
    assert [each.rows for each in read_settled(store, after=None).batches] == [{"sink": ROWS}, None]


def test_a_query_with_state_has_given_what_the_watermark_of_its_batch_lets_go(tmp_path):
    """The windows that the new watermark closes are given by the next batch."""
    logs = SettledLogs(tmp_path, watermark_step_ms=10)
    logs.settle(3)
    store = CheckpointStore.open(tmp_path)
    marks = [each.watermark_ms for each in read_settled(store, after=None).batches]
    assert marks == [None, 10, 20]
    store.put("state/0/0/1.delta", b"")
    marks = [each.watermark_ms for each in read_settled(store, after=None).batches]
    assert marks == [None, None, 10]


def test_a_row_with_a_time_to_come_tells_no_hour_before_the_stores_clock_has_passed_it(tmp_path):
    """One row of next year told 8,757 hours in one event; each is told once, when it is over."""
    logs = SettledLogs(tmp_path, watermark_step_ms=80 * 366 * 24 * 3_600_000)
    store, start = CheckpointStore.open(tmp_path), datetime(2005, 1, 1, tzinfo=UTC)
    told: list[tuple[str, ...]] = []
    last: SettledEvent | None = None
    for number, minutes in enumerate((59, 60, 61, 185, 70, 245)):
        logs.settle()
        seconds = (start + timedelta(minutes=minutes)).timestamp()
        os.utime(tmp_path / f"commits/{number}", (seconds, seconds))
        [last] = events_since(last, read_settled(store, after=number - 1 if last else None))
        told.append(hours_completed(last, since=start))
    hours = [f"2005-01-01T0{hour}" for hour in range(4)]
    assert told == [(), (hours[0],), (), (hours[1], hours[2]), (), (hours[3],)]


def test_batches_that_spark_purged_are_left_out_and_the_oldest_are_read_first(tmp_path):
    logs = SettledLogs(tmp_path)
    logs.settle(6)
    logs.purge(2)
    store = CheckpointStore.open(tmp_path)
    looked = read_settled(store, after=None, at_most=3)
    assert [each.batch_id for each in looked.batches] == [2, 3, 4]
    assert looked.newest == 5


def test_a_damaged_log_is_no_event(tmp_path):
    logs = SettledLogs(tmp_path)
    logs.settle(2)
    (tmp_path / "commits/1").write_text("v1")
    with pytest.raises(CheckpointFormatError):
        read_settled(CheckpointStore.open(tmp_path), after=None)


def test_batches_of_a_query_that_has_lost_its_id_are_not_told_under_none(tmp_path):
    """They were told under its id already: whoever works on each event would do so twice."""
    logs = SettledLogs(tmp_path)
    (tmp_path / "metadata").unlink()
    store = CheckpointStore.open(tmp_path)
    assert read_settled(store, after=None).newest is None, "Spark has not begun"
    logs.settle(2)
    with pytest.raises(CheckpointFormatError, match="has batches and no file metadata"):
        read_settled(store, after=None)


HOUR = timedelta(hours=1)
SINCE = datetime(2026, 11, 25, 9, tzinfo=UTC)


def marked(number: int, watermark_ms: int | None) -> SettledBatch:
    return replace(batch(number), watermark_ms=watermark_ms)


def watermarks(*told: int | None) -> list[SettledEvent]:
    """An event for each batch, in minutes after ``SINCE``."""
    start_ms = round(SINCE.timestamp() * 1000)
    marks = [None if each is None else start_ms + each * 60_000 for each in told]
    looked = replace(
        found(*range(len(told))), batches=tuple(marked(n, each) for n, each in enumerate(marks))
    )
    return list(events_since(None, looked, each_batch=True))


def test_an_hour_is_complete_once_the_watermark_is_at_its_end_and_no_sooner():
    told = [hours_completed(each) for each in watermarks(0, 59, 60, 60, 119, 185)]
    assert told == [(), (), ("2026-11-25T09",), (), (), ("2026-11-25T10", "2026-11-25T11")]


def test_a_watermark_that_goes_back_or_away_tells_no_hour_twice():
    told = [hours_completed(each) for each in watermarks(0, 61, 5, 62, None, 62, 121)]
    assert told == [(), ("2026-11-25T09",), (), (), (), (), ("2026-11-25T10",)]


def test_before_the_first_watermark_only_a_person_knows_which_hours_had_rows():
    first, second = watermarks(None, 61)
    assert hours_completed(first, since=SINCE) == ()
    assert hours_completed(second) == ()
    assert hours_completed(second, since=SINCE) == ("2026-11-25T09",)
    assert hours_completed(second, since=SINCE - HOUR) == ("2026-11-25T08", "2026-11-25T09")


def test_no_hour_before_the_first_one_is_told_wherever_the_watermark_began():
    """A first row of 1970, or a backfill: the first watermark is told, the hours before are not."""
    first, second = watermarks(-56 * 366 * 24 * 60, 61)
    assert hours_completed(first, since=SINCE) == ()
    assert hours_completed(second, since=SINCE) == ("2026-11-25T09",)
    with pytest.raises(CheckpointError, match=r"completes 491,905 hours.*Give since"):
        hours_completed(second)


@pytest.mark.parametrize("since", [None, SINCE])
def test_a_watermark_beyond_all_dates_is_said_and_completes_nothing(since):
    """Seconds that were taken for milliseconds, or the reverse, are in the year 58,000."""
    for event in watermarks(29_000_000_000, 29_000_000_061):
        with pytest.raises(CheckpointError, match="A row had a time of another century"):
            hours_completed(event, since=since)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine
@given(st.lists(st.integers(0, 400), min_size=1, max_size=30), st.data(), st.integers(1, 4))
def test_looks_at_any_times_tell_each_hour_once_in_order_and_none_early(steps, data, at_most):
    start_ms = round(SINCE.timestamp() * 1000)
    marks = [start_ms + 60_000 * sum(steps[: n + 1]) for n in range(len(steps))]
    told: list[str] = []
    last: SettledEvent | None = None
    settled = 0
    while settled < len(marks):
        settled = data.draw(st.integers(settled + 1, len(marks)))
        kept = data.draw(st.integers(0, settled - 1))  # Spark has purged those before
        looked = replace(
            found(*range(settled)), batches=tuple(marked(n, marks[n]) for n in range(kept, settled))
        )
        each_batch = data.draw(st.booleans())
        for event in events_since(last, looked, each_batch=each_batch):
            told += hours_completed(event, since=SINCE)
            assert event.watermark_reached_ms is not None
            assert all(
                datetime.fromisoformat(f"{hour}:00+00:00") + HOUR
                <= datetime.fromtimestamp(event.watermark_reached_ms / 1000, UTC)
                for hour in told
            )
            last = event
    due = (marks[-1] - start_ms) // 3_600_000
    assert told == [f"{SINCE + n * HOUR:%Y-%m-%dT%H}" for n in range(due)]
