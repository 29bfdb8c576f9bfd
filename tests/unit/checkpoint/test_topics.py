"""Which topics a checkpoint's offsets are of."""

from __future__ import annotations

import pytest

from airflow_eos.checkpoint import CheckpointStore
from airflow_eos.checkpoint.topics import require_same_topics
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
