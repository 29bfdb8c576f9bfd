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
