"""Which topics a checkpoint's offsets are of."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from airflow_eos.checkpoint import CheckpointStore, DecisionLog
from airflow_eos.checkpoint.mending import mend
from airflow_eos.checkpoint.progress import SourceProgress
from airflow_eos.checkpoint.topics import (
    TopicsRead,
    input_change,
    lost_input,
    require_same_topics,
    same_topics_watched,
    warn_of_lost_rows,
)
from airflow_eos.errors import InputLostError, TopicError
from tests.unit.checkpoint.conftest import decision


@pytest.fixture
def store(tmp_path) -> CheckpointStore:
    return CheckpointStore.open(tmp_path / "ck")


def test_a_topic_that_was_made_again_is_refused_for_ever(store):
    require_same_topics(store, {"in": "A", "other": "B"})
    for _ in range(2):
        with pytest.raises(TopicError, match="'in' was deleted and made again"):
            require_same_topics(store, {"in": "C", "other": "B"})
    require_same_topics(store, {"in": "A", "other": "B"})


def test_a_topic_that_comes_later_is_noted(store):
    require_same_topics(store, {"in": "A"})
    require_same_topics(store, {"in": "A", "new": "N"})
    require_same_topics(store, {"in": "A"})
    with pytest.raises(TopicError, match="'new'"):
        require_same_topics(store, {"in": "A", "new": "M"})


def test_a_topic_that_is_not_read_for_a_while_is_not_forgotten(store):
    """A query leaves a topic out, takes a new one, and comes back to a topic made again."""
    require_same_topics(store, {"in": "A"})
    require_same_topics(store, {"new": "N"})
    with pytest.raises(TopicError, match="'in'"):
        require_same_topics(store, {"in": "B", "new": "N"})


def test_topics_of_two_clusters_may_have_one_name(store):
    """The first batch of such a query called the second one made again, on every checkpoint."""

    def asked(*ids: str) -> list[Any]:
        return [partial(dict, {"in": each}) for each in ids]

    for _ in range(2):
        same_topics_watched(store, asked("A", "B"))()
    for ids in (("C", "B"), ("A", "C"), ("B", "A")):  # or they have changed places
        with pytest.raises(TopicError, match="The topic 'in' was deleted"):
            same_topics_watched(store, asked(*ids))
    topics = [TopicsRead(ids=dict, begins=partial(dict, {("in", 0): at})) for at in (900, 0)]
    sources = [SourceProgress(n, "kafka", {"in": {0: 950}}, {"in": {0: 960}}, "-") for n in (0, 1)]
    assert not lost_input(topics, sources)
    assert not lost_input(topics, [sources[0], replace(sources[1], start={"in": {0: 5}})])


def test_what_is_gone_of_a_range_is_told_by_partition_and_topics_that_compact_by_name():
    source = SourceProgress(
        0,
        "kafka",
        {"in": {0: 10, 1: 10, 2: 0}},
        {"in": {0: 50, 1: 50, 2: 9, 3: 7}},
        "-",
    )
    begins = {("in", 0): 30, ("in", 1): 90, ("in", 2): 0, ("in", 3): 0, ("other", 0): 9}
    topics = TopicsRead(
        ids=dict,
        policies=lambda: {"in": "compact,delete", "other": "compact"},
        begins=lambda: begins,
    )
    lost = lost_input([topics], [source])
    assert lost.past_retention == {("in", 0): 20, ("in", 1): 40}
    assert (lost.compacted, lost.skipped) == (("in",), False)
    assert "20 offsets of the batch's range in partition 0 of topic 'in'" in str(lost)
    assert not lost_input([TopicsRead(ids=dict)], [source])


def test_a_start_warns_once_of_the_topics_that_compact():
    told = {"a": "compact", "b": "delete"}
    with capture_logs() as logs:
        warn_of_lost_rows([TopicsRead(ids=dict, policies=lambda: told), TopicsRead(ids=dict)])
    assert [(each["event"], each["topics"]) for each in logs] == [("input_is_compacted", ["a"])]


def test_a_partition_that_nobody_reads_any_more_has_lost_all_of_its_range():
    source = SourceProgress(0, "kafka", {"in": {0: 10}}, {"in": {0: 50}, "out": {0: 7}}, "-")
    topics = TopicsRead(ids=dict, begins=lambda: {("in", 0): 0}, skips_lost=True)
    lost = lost_input([topics], [source])
    assert (lost.past_retention, lost.absent) == ({("out", 0): 7}, True)
    assert not lost_input([topics, TopicsRead(ids=dict)], [source]).absent, "not told is not gone"


def entry(store, batch: int, ends: str, *, complete: bool = False) -> str:
    text = f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":{batch + 1}}}\n{ends}'
    store.put(f"offsets/{batch}", text.encode())
    if complete:
        store.put(f"commits/{batch}", b'v1\n{"nextBatchWatermarkMs":0}')
    return text


READ = '{"a":{"0":5},"b":{"0":5}}'
PLANNED = '{"a":{"0":8},"b":{"0":9}}'


def now(*topics: str, **more: Any) -> list[TopicsRead]:
    begins = {(topic, 0): 0 for topic in topics}
    return [TopicsRead(ids=dict, begins=lambda: begins, as_planned=True, **more)]


def test_a_planned_batch_of_a_topic_that_is_gone_is_named_and_then_planned_anew(store):
    """Before anything is written, with the rows that it was to read; then by a person's word."""
    entry(store, 0, READ, complete=True)
    entry(store, 1, PLANNED)
    for available_now in (False, True):
        with pytest.raises(InputLostError, match=r"Topic 'b' \(partitions 0\)") as refused:
            input_change(store, now("a"), available_now=available_now).require_accepted()
        remedy = refused.value.remedies[-1]
        assert remedy.settings == {"failOnDataLoss": "false"}
        assert remedy.costs.startswith("4 rows")
        change = input_change(store, now("a", skips_lost=True), available_now=available_now)
        with capture_logs() as logs:
            change.require_accepted()
        assert [(each["event"], each["rows"]) for each in logs] == [("input_left_out", 4)]
        assert [each.path for each in change.mends()] == ["offsets/1"]
    mend(store, change.mends())
    assert store.get("offsets/1") is None
    entry(store, 1, '{"a":{"0":8}}')  # as Spark plans it now
    assert input_change(store, now("a", skips_lost=True), available_now=True).mends() == ()
    store.put("commits/1", b'v1\n{"nextBatchWatermarkMs":0}')
    input_change(store, now("a"), available_now=True).require_accepted()


def test_a_topic_that_is_gone_is_named_where_no_batch_is_in_flight(store):
    entry(store, 0, READ, complete=True)
    with pytest.raises(InputLostError, match="'b'") as refused:
        input_change(store, now("a"), available_now=True).require_accepted()
    assert "rows" not in refused.value.remedies[-1].costs
    input_change(store, now("a", "b", "c"), available_now=True).require_accepted()
    input_change(store, [TopicsRead(ids=dict)], available_now=True).require_accepted()


def test_a_batch_that_was_planned_before_a_partition_came_is_planned_anew(store):
    """Spark runs it by no start with availableNow: MISMATCHED_TOPIC_PARTITIONS."""
    entry(store, 0, READ, complete=True)
    text = entry(store, 1, PLANNED)
    change = input_change(store, now("a", "b", "c"), available_now=True)
    change.require_accepted()
    assert [each.path for each in change.mends()] == ["offsets/1"]
    assert input_change(store, now("a", "b", "c"), available_now=False).mends() == ()
    own = [replace(each, as_planned=False) for each in now("a", "b", "c")]
    assert input_change(store, own, available_now=True).mends() == ()

    assert DecisionLog(store).record(decision(1, offsets=text))
    promised = input_change(store, now("a", "b", "c"), available_now=True)
    assert promised.mends() == ()
    with pytest.raises(InputLostError, match="more partitions") as refused:
        promised.require_accepted()
    [remedy] = refused.value.remedies
    assert (remedy.settings, remedy.costs) == ({"trigger": "1 second"}, "")
    input_change(store, now("a", "b", "c"), available_now=False).require_accepted()


def test_a_promise_of_a_topic_that_is_gone_keeps_its_plan(store):
    entry(store, 0, READ, complete=True)
    assert DecisionLog(store).record(decision(1, offsets=entry(store, 1, PLANNED)))
    change = input_change(store, now("a", skips_lost=True), available_now=False)
    change.require_accepted()
    assert change.mends() == ()
    with pytest.raises(InputLostError) as refused:
        input_change(store, now("a"), available_now=True).require_accepted()
    assert refused.value.remedies[-1].settings == {
        "failOnDataLoss": "false",
        "trigger": "1 second",
    }
