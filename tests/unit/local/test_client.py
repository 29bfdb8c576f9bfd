"""What a cluster that does not answer looks like to who asked for a topic."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from airflow_eos.errors import LocalEnvironmentError
from airflow_eos.local import broker as client


class Silent:
    """An ``AdminClient`` whose broker never answers."""

    def create_topics(self, topics, **_):
        return {topic.topic: Future() for topic in topics}


def test_a_broker_that_does_not_answer_is_an_error_that_says_what_to_do(monkeypatch):
    monkeypatch.setattr(client, "_admin", lambda _: Silent())
    monkeypatch.setattr(client, "_SECONDS", 0.01)

    with pytest.raises(LocalEnvironmentError, match=r"topic t: h:1 gave no answer.*try again"):
        client.create_topic("h:1", "t", 1, {})
