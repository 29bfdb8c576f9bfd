"""Shapes of batches and topics that are rare until they are there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]
from kafka.protocol.admin import IncrementalAlterConfigsRequest as Alter

from airflow_eos.errors import RowError
from airflow_eos.kafka import destination
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.records import HEADER_BYTES
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.transactions.identity import as_transaction
from airflow_eos.local import EmbeddedKafka
from tests.integration.hazards.direct import Direct, wait_for

LIMIT = 2000


def test_partitions_added_between_two_batches_are_used(
    direct: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(destination, "_FRESH_S", 0.0)  # a minute, else
    direct.feed_numbers(200)
    direct.feed_numbers(200)
    with direct.started() as batch:
        direct.deliver(batch, 0)
        grow(direct, 4)
        direct.deliver(batch, 1)
        written = {r.partition for d in direct.decisions.of_batch(1) for r in ranges(d)}
    assert written == {0, 1, 2, 3}
    direct.assert_exactly_once()


def test_partitions_added_while_a_promise_is_unsettled_do_not_change_it(
    direct: Direct, die_at: Callable[[str], None]
) -> None:
    direct.feed_numbers(200)
    die_at("settled-some")
    with pytest.raises(RuntimeError):
        direct.run()
    die_at("")
    grow(direct, 4)
    direct.feed_numbers(200)
    direct.run()
    direct.assert_exactly_once()


def test_a_batch_of_one_row_and_batches_without_any(direct: Direct) -> None:
    direct.feed([], [])
    direct.feed([("k", "the only row")], [], [])
    direct.feed([], [], [])
    direct.feed()
    direct.feed([], [("k", "another")])
    direct.run()
    direct.assert_exactly_once()
    decided = [direct.decisions.of_batch(n) for n in range(5)]
    # The first batch of a run is sealed; an empty one promises no rows, and its range.
    assert [len(each) for each in decided] == [2, 1, 1, 1, 1]
    assert [len(each[-1].works) for each in decided] == [0, 1, 0, 0, 1]
    assert all(each[-1].offsets for each in decided)


@pytest.mark.long
def test_a_row_of_exactly_the_limit_is_delivered_and_one_byte_more_is_refused(
    direct: Direct, kafka_broker: EmbeddedKafka
) -> None:
    direct.topic = kafka_broker.create_topic(
        f"{direct.topic}-small", 2, {"max.message.bytes": str(LIMIT)}
    )
    direct.compression = "none"
    fits = ("k", "x" * value_bytes_that_fill(LIMIT))
    direct.feed([("k", "before")], [fits, fits, fits])
    direct.run()
    direct.assert_exactly_once()

    direct.feed([("k", "beside")], [("key-of-it", fits[1] + "x")])
    with pytest.raises(RowError, match=r"key-of-it.* needs \d+ bytes .* takes 2000") as refused:
        direct.run()
    assert "max.message.bytes" in str(refused.value)
    assert direct.open_transactions() == [], "the tasks before it are aborted"
    assert len(direct.visible()) == 4, "the rows before stay, once"

    set_limit(direct.bootstrap, direct.topic, LIMIT * 10)
    direct.run()
    direct.assert_exactly_once()


@pytest.mark.long
def test_a_topic_taken_away_while_running_is_named(
    direct: Direct, kafka_broker: EmbeddedKafka
) -> None:
    direct.feed_numbers(20)
    direct.run()
    direct.feed_numbers(20)
    with direct.started() as batch:
        admin = AdminClient({"bootstrap.servers": direct.bootstrap})
        admin.delete_topics([direct.topic])[direct.topic].result(30)
        with ConnectionPool(direct.settings) as wire:
            wait_for(lambda: wire.cluster.find_leaders(direct.topic, refresh=True) is None)
        with pytest.raises(Exception, match=direct.topic):
            direct.deliver(batch, 1)
    kafka_broker.create_topic(direct.topic, 2)
    direct.run()
    fed = Counter(row for task in direct.batches[1].tasks for row in task)
    assert Counter(direct.visible()) == fed


def ranges(decision):
    return [written for work in decision.works for written in as_transaction(work).written]


def grow(direct: Direct, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": direct.bootstrap})
    admin.create_partitions([NewPartitions(direct.topic, partitions)])[direct.topic].result(30)
    with ConnectionPool(direct.settings) as wire:
        wait_for(
            lambda: (
                sorted(
                    n for n in wire.cluster.leaders(direct.topic, refresh=True).values() if n >= 0
                )
                == [1] * partitions
            )
        )


def set_limit(
    bootstrap: str, topic: str, limit: object, setting: str = "max.message.bytes"
) -> None:
    """Change a topic's setting and wait until the broker knows."""
    with ConnectionPool(KafkaSettings.from_librdkafka({"bootstrap.servers": bootstrap})) as wire:
        kind = Alter.AlterConfigsResource
        change = kind.AlterableConfig(name=setting, config_operation=0, value=str(limit))
        resource = kind(resource_type=2, resource_name=topic, configs=[change])
        wire.request(Alter(resources=[resource], validate_only=False))
        wanted = {setting: str(limit)}
        wait_for(lambda: wire.cluster.topic_config(topic, [setting]) == wanted)


def value_bytes_that_fill(limit: int, key: str = "k") -> int:
    """The longest value that fits a record batch of ``limit`` bytes, by Kafka's own format.

    A record: length, attributes (1), timestamp and offset deltas (1 each), key length (1), key,
    value length (2), value, count of headers (1). The length takes two bytes from 64 on.
    """
    return limit - HEADER_BYTES - (2 + 1 + 1 + 1 + 1 + len(key) + 2 + 1)
