"""A promise into a topic that was made again: nobody commits it, and who asks is told."""

from __future__ import annotations

import time

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from airflow_eos.core.recovery.plan import Action
from airflow_eos.recovery import plan_recovery


def made_again(dead) -> None:
    admin = AdminClient({"bootstrap.servers": dead.settings.bootstrap_servers})
    admin.delete_topics([dead.topic])[dead.topic].result(30)
    ends = time.monotonic() + 60
    while dead.topic in admin.list_topics(timeout=10).topics:
        assert time.monotonic() < ends
    admin.create_topics([NewTopic(dead.topic, 1, 1)])[dead.topic].result(30)


def test_the_plan_says_that_the_topic_is_another_one_and_asks(dead) -> None:
    promised = dead.write(0, ["one", "two"])
    dead.decided(promised)
    [before] = plan_recovery(dead.store.location, dead.settings).steps
    assert before.action is Action.COMMIT
    made_again(dead)
    [step] = plan_recovery(dead.store.location, dead.settings).steps
    assert step.action is Action.ASK
    assert f"topic {dead.topic!r} is another one now" in step.reason
    assert promised.written[0].topic_id in step.reason
    assert dead.visible() == []


def test_a_promise_into_a_topic_without_an_id_is_committed_as_ever(dead) -> None:
    """As an older release, or a broker that gives none, has left it: the log alone tells."""
    promised = dead.write(0, ["one", "two"])
    import msgspec

    bare = tuple(msgspec.structs.replace(each, topic_id="") for each in promised.written)
    dead.decided(msgspec.structs.replace(promised, written=bare))
    [step] = plan_recovery(dead.store.location, dead.settings).steps
    assert step.action is Action.COMMIT
