"""Which offsets a batch gets, where the first begins, and what may not be read on with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_eos.arrow.source import task as module
from airflow_eos.arrow.source.task import KafkaInput, offset_of, starting_of
from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.spark_log import SparkLog, kafka_offsets
from airflow_eos.errors import ConfigurationError, InputError, TopicError
from airflow_eos.kafka.client.offsets import EARLIEST, LATEST
from airflow_eos.kafka.client.reading import OffsetSpan
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.sinks import StartPosition

try:
    from airflow_eos.arrow.source.stream import (
        CUT,
        DEALT,
        Spans,
        around,
        next_end,
        places_of,
        tasks_of,
    )
except ImportError:
    pytest.skip("Spark < 4.2 asks no Python data source for a limit", allow_module_level=True)


def spans(start: Any, end: Any) -> Spans:
    """Of all tasks."""
    return [each for its in tasks_of(start, end) for each in its]


places = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 5)), st.integers(0, 10_000), min_size=1
)


def test_an_offset_is_what_sparks_own_source_writes():
    assert offset_of({("b", 0): 1, ("a", 10): 3, ("a", 2): 2}) == {
        "a": {"2": 2, "10": 3},
        "b": {"0": 1},
    }


def test_how_ranges_are_cut_is_no_topic_to_whoever_reads_the_checkpoint():
    end = next_end({"t": {"0": 0}}, {("t", 0): 100}, most=None, rows_a_task=30, tasks=2)
    assert end == {"t": {"0": 100}, CUT: {"": 30}, DEALT: {"": 2}}
    assert kafka_offsets(json.dumps(end)) == {"t": {0: 100}}, "as status and recovery read it"


def test_nothing_new_is_the_very_same_offset_or_spark_would_run_a_batch():
    start = {"t": {"0": 5}}
    assert next_end(start, {("t", 0): 5}, most=3, rows_a_task=7) is start


@settings(deadline=None)
@given(places, st.data(), st.integers(100, 5000))
def test_batches_reach_the_end_and_none_is_much_larger_than_asked(ends, data, most):
    start = offset_of({place: data.draw(st.integers(0, end)) for place, end in ends.items()})
    seen = 0
    while True:
        end = next_end(start, ends, most=most, rows_a_task=None)
        if end == start:
            break
        before, after = places_of(start), places_of(end)
        assert all(before[place] <= after[place] <= ends[place] for place in ends)
        assert sum(after.values()) - sum(before.values()) <= most + len(ends)
        start, seen = end, seen + 1
        assert seen <= 2_000
    assert places_of(start) == ends


def test_a_small_partition_beside_a_large_one_goes_on_with_it():
    ends = {("t", 0): 1, ("t", 1): 10_000}
    end = next_end({"t": {"0": 0, "1": 0}}, ends, most=10, rows_a_task=None)
    assert end["t"]["0"] == 1
    assert end["t"]["1"] > 0


@settings(deadline=None)
@given(
    places,
    st.data(),
    st.one_of(st.none(), st.integers(1, 300)),
    st.one_of(st.none(), st.integers(1, 5)),
)
def test_the_spans_of_a_batch_are_its_offsets_each_once(ends, data, rows_a_task, tasks):
    begun = {place: data.draw(st.integers(0, end)) for place, end in ends.items()}
    end = next_end(offset_of(begun), ends, most=None, rows_a_task=rows_a_task, tasks=tasks)
    dealt = tasks_of(offset_of(begun), end)
    assert all(dealt), "a task without a range"
    assert tasks is None or len(dealt) <= tasks
    for its in dealt:
        read = [(span.topic, span.partition, span.first) for span, _ in its]
        assert read == sorted(read), "rows of a partition change their order"
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for span, number in sorted(spans(offset_of(begun), end), key=_by_place):
        at, expected = found.get(
            (span.topic, span.partition), (begun[span.topic, span.partition], 0)
        )
        assert span.first == at
        assert number == expected
        assert span.until > span.first
        assert rows_a_task is None or span.until - span.first <= rows_a_task
        found[span.topic, span.partition] = span.until, number + 1
    assert {place: until for place, (until, _) in found.items()} == {
        place: until for place, until in ends.items() if until > begun[place]
    }


def _by_place(each: Any) -> tuple[str, int, int]:
    span, _ = each
    return span.topic, span.partition, span.first


def test_ranges_are_dealt_so_that_tasks_have_about_the_same_rows():
    ends = {("t", 0): 100, ("t", 1): 60, ("t", 2): 50, ("t", 3): 1}
    end = next_end({}, ends, most=None, rows_a_task=None, tasks=2)
    rows = [sum(span.until - span.first for span, _ in its) for its in tasks_of({}, end)]
    assert rows == [101, 110]


def test_a_replay_is_cut_as_it_was_whatever_the_options_say_by_then():
    start = {"t": {"0": 0}}
    end = next_end(start, {("t", 0): 100}, most=None, rows_a_task=30)
    first = spans(start, end)
    assert [(span.first, span.until) for span, _ in first] == [
        (0, 25),
        (25, 50),
        (50, 75),
        (75, 100),
    ]
    # What is logged is all that a replay has.
    again = next_end(end, {("t", 0): 200}, most=None, rows_a_task=None)
    assert CUT not in again
    assert len(spans(end, again)) == 1


def test_a_new_partition_is_read_from_its_beginning():
    end = next_end({"t": {"0": 5}}, {("t", 0): 5, ("t", 1): 3}, most=None, rows_a_task=None)
    assert end == {"t": {"0": 5, "1": 3}}
    ((span, _),) = spans({"t": {"0": 5}}, end)
    assert (span.partition, span.first, span.until) == (1, 0, 3)


def test_a_new_partition_without_rows_is_noted():
    end = next_end({"t": {"0": 5}}, {("t", 0): 5, ("t", 1): 0}, most=None, rows_a_task=None)
    assert end == {"t": {"0": 5, "1": 0}}
    assert spans({"t": {"0": 5}}, end) == []


def test_a_topic_that_was_deleted_is_an_error_that_names_it():
    with pytest.raises(TopicError, match=r"Partition 1 of topic 't'.*offset 7"):
        next_end({"t": {"0": 5, "1": 7}}, {("t", 0): 5}, most=None, rows_a_task=None)


def test_a_topic_that_was_made_again_is_an_error_that_names_it():
    with pytest.raises(InputError, match=r"Partition 0 of topic 't'.*offset 5.*ends at 2"):
        next_end({"t": {"0": 5}}, {("t", 0): 2}, most=None, rows_a_task=None)


@pytest.mark.parametrize("cut", [None, 7, 40])
@pytest.mark.parametrize("dealt", [None, 1, 3])
@pytest.mark.parametrize(
    "ruled",
    [
        [],
        [(0, 3, 4)],
        [(0, 0, 20), (1, 69, 90)],
        [(0, 49, 50), (0, 30, 33), (0, 31, 40)],  # two that overlap
        [(0, 0, 50), (1, 0, 70)],  # all
        [(1, 10, 11), (1, 11, 12), (2, 0, 9)],
    ],
)
def test_a_task_reads_around_what_is_stepped_over_and_all_else_of_its_own(ruled, dealt, cut):
    skipped = [OffsetSpan("t", *each) for each in ruled]
    end: Any = {"t": {"0": 50, "1": 70}, "u": {"0": 9}}
    end |= ({CUT: {"": cut}} if cut else {}) | ({DEALT: {"": dealt}} if dealt else {})

    def offsets(given: Spans) -> list[tuple[str, int, int]]:
        return [(s.topic, s.partition, at) for s, _ in given for at in range(s.first, s.until)]

    gone = {(s.topic, s.partition, at) for s in skipped for at in range(s.first, s.until)}
    for its in tasks_of({"t": {"0": 3}}, end):
        left = around(its, skipped)
        assert offsets(left) == [each for each in offsets(its) if each not in gone]
        assert all(span.first < span.until for span, _ in left)


# --- Where the first batch begins: told once, and then noted, by whoever asks first ---------------


SETTINGS = KafkaSettings.from_librdkafka({"bootstrap.servers": "none:1"})


class Log:
    """Two partitions that begin at 3 and grow; rows of the moment 50 begin at 7 in the first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.end = 10  # the last stable offset
        self.high_watermark = 12
        monkeypatch.setattr(module, "partitions_of", self.partitions)
        monkeypatch.setattr(module, "positions", self.positions)

    def partitions(self, _wire: Any, topics: Any, **_: Any) -> list[tuple[str, int]]:
        return [(topic, number) for topic in topics for number in (0, 1)]

    def positions(
        self, _wire: Any, places: Any, when: int, *, committed_only: bool
    ) -> dict[tuple[str, int], int]:
        at = {EARLIEST: 3, LATEST: self.end if committed_only else self.high_watermark}
        return {place: at.get(when, -1 if place[1] else 7) for place in places}


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    return Log(monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore.open(str(tmp_path / "checkpoint"))


def began(store: CheckpointStore, starting: Any) -> Any:
    return KafkaInput(SETTINGS, ("t",), store, starting).began(None)  # type: ignore[arg-type]


def test_latest_is_where_it_was_when_it_was_first_asked_for(
    log: Log, store: CheckpointStore
) -> None:
    assert began(store, "latest") == {"t": {"0": 10, "1": 10}}
    log.end = 20
    assert began(store, "latest") == {"t": {"0": 10, "1": 10}}


def test_of_two_drivers_that_ask_at_once_both_begin_where_the_first_one_does(
    log: Log, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = CheckpointStore.create

    def after_another(self: CheckpointStore, path: str, data: bytes) -> bool:
        monkeypatch.setattr(CheckpointStore, "create", create)
        assert began(self, "latest") == {"t": {"0": 10, "1": 10}}
        return create(self, path, data)

    monkeypatch.setattr(CheckpointStore, "create", after_another)
    found = KafkaInput(SETTINGS, ("t",), store, {"t": {"0": 15, "1": 15}}).began(None)  # type: ignore[arg-type]
    assert found == {"t": {"0": 10, "1": 10}}


def test_the_note_is_what_sparks_own_source_writes(log: Log, store: CheckpointStore) -> None:
    began(store, "earliest")
    assert SparkLog(store).began("0") == {"t": {0: 3, 1: 3}}
    assert store.get("sources/0/0") == b'\0v1\n{"t":{"0":3,"1":3}}'


@pytest.mark.parametrize(
    ("starting", "expected"),
    [
        ("earliest", {"0": 3, "1": 3}),
        ("latest", {"0": 10, "1": 10}),
        (50, {"0": 7, "1": 10}),  # no row of then or later in the second one: its end
        ({"t": {"0": -2, "1": -1}}, {"0": 3, "1": 10}),
        ({"t": {"0": 5, "1": 6}}, {"0": 5, "1": 6}),
    ],
)
def test_every_way_to_say_where(
    log: Log, store: CheckpointStore, starting: Any, expected: Any
) -> None:
    assert began(store, starting) == {"t": expected}


@pytest.mark.parametrize("given", [{"t": {"0": 5}}, {"t": {"0": 5, "1": 5, "2": 5}}])
def test_offsets_of_other_partitions_than_there_are_are_refused(
    log: Log, store: CheckpointStore, given: Any
) -> None:
    with pytest.raises(ConfigurationError, match="starting names the partitions"):
        began(store, given)


@pytest.mark.parametrize(("committed_only", "end"), [(True, 10), (False, 12)])
def test_a_batch_ends_before_the_rows_of_open_transactions_unless_told_otherwise(
    log: Log, store: CheckpointStore, committed_only: bool, end: int
) -> None:
    read = KafkaInput(SETTINGS, ("t",), store, committed_only=committed_only)
    assert read.ends(None) == {("t", 0): end, ("t", 1): end}  # type: ignore[arg-type]


def test_what_was_read_past_the_last_stable_offset_is_no_topic_that_was_made_again(
    log: Log, store: CheckpointStore
) -> None:
    """As ``read_uncommitted`` reads; the transaction that was open then is open still."""
    read = KafkaInput(SETTINGS, ("t",), store)
    ends = read.ends(None)  # type: ignore[arg-type]
    begun = {("t", 0): 12, ("t", 1): 9}
    assert read.not_before(None, ends, begun) == {("t", 0): 12, ("t", 1): 10}  # type: ignore[arg-type]


@pytest.mark.parametrize("committed_only", [True, False])
def test_what_was_read_past_the_high_watermark_is_left_for_the_planner_to_refuse(
    log: Log, store: CheckpointStore, committed_only: bool
) -> None:
    read = KafkaInput(SETTINGS, ("t",), store, committed_only=committed_only)
    ends = read.ends(None)  # type: ignore[arg-type]
    assert read.not_before(None, ends, {("t", 0): 13}) == ends  # type: ignore[arg-type]


def test_what_a_user_may_say() -> None:
    assert starting_of(StartPosition.parsed("latest"), ("t",)) == "latest"
    assert starting_of(StartPosition.parsed("2026-11-23T10:00:00Z"), ("t",)) == 1795428000000
    assert starting_of(StartPosition.offsets({0: 5}), ("t",)) == {"t": {"0": 5}}
    assert starting_of('{"t": {"0": -2}}', ("t",)) == {"t": {"0": -2}}
    for position in ("yesterday", "[1]", '{"t": 5}', '{"t":{"0":-3}}', '{"t":{"x":3}}'):
        with pytest.raises(ConfigurationError, match="expected earliest, latest"):
            starting_of(position, ("t",))
    with pytest.raises(ConfigurationError, match="2 topics"):
        starting_of(StartPosition.offsets({0: 5}), ("t", "u"))
