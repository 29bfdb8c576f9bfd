"""Which topics a checkpoint's offsets are of."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from airflow_eos.checkpoint import CheckpointStore
from airflow_eos.checkpoint.progress import SourceProgress
from airflow_eos.checkpoint.topics import (
    TopicsRead,
    lost_input,
    require_same_topics,
    warn_of_lost_rows,
)
from airflow_eos.errors import TopicError


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
