"""A source without offsets of its own: rows that are sent again are passed on once."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.support.topics import produce, read_topic


def message(number: int, minute: int = 0) -> tuple[str, str]:
    at = f"2026-11-23T10:{minute:02}:{number % 60:02}Z"
    return "device", json.dumps({"id": f"m-{number}", "at": at, "number": number})


@pytest.mark.examples
def test_each_id_is_passed_on_once_however_often_it_was_sent(example, play, topic, kafka_broker):
    messages, unique = topic("messages"), topic("unique", 2)
    app = example(
        "deduplicate",
        *("--input-topic", messages, "--output-topic", unique),
        *("--state-partitions", "2", "--max-offsets-per-trigger", "150"),
    )
    first = [message(number) for number in range(100)]
    # again within the batch, in the next one, and with another time, as a producer restarts
    rows = [*first, *first[:50], *first, *[message(number, minute=3) for number in range(100, 150)]]
    rows += [message(number, minute=5) for number in range(60, 150)]
    rows += [("device", "no id"), ("device", "no id")]
    produce(kafka_broker.bootstrap_servers, messages, rows)

    play(app, "prepared@2", "settled@1")
    app.assert_rocksdb()

    got = Counter(value for _, value in read_topic(kafka_broker.bootstrap_servers, unique))
    numbers = Counter(json.loads(value)["number"] for value in got.elements() if value != "no id")
    assert numbers == Counter(range(150))
    assert got["no id"] == 2, "a row without an id is nobody's copy"
