"""The documents' job: Avro by a registry, numbers of 18 digits, windows of 20 s, exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from demo.registry import Encoder
from tests.support.servers.registry import EmbeddedRegistry
from tests.support.topics import produce, read_topic

BEGIN = datetime(2026, 11, 23, 10, tzinfo=UTC)
SEEN_AT = {"name": "seenAt", "type": {"type": "long", "logicalType": "timestamp-millis"}}
NUMBER, NAME = ({"name": name, "type": "string"} for name in ("identifyNumber", "name"))
OLD = {"type": "record", "name": "Person", "fields": [NAME, NUMBER, SEEN_AT]}
# In another order, and with one more: bytes of the old schema would be misread by the new one.
CITY = {"name": "city", "type": "string", "default": ""}
NEW = {"type": "record", "name": "Person", "fields": [NUMBER, CITY, NAME, SEEN_AT]}
NUMBERS = ("110101199003070011", "110101199003070022")
LETTERS = (b"\0\0\0\0\x63not known", b"{}", b"")
WINDOWS = Counter({(number, window): 5 for number in NUMBERS for window in ("00:00", "00:20")})


@pytest.fixture(scope="module")
def schemas() -> Iterator[EmbeddedRegistry]:
    with EmbeddedRegistry() as running:
        yield running


def person(number: str, second: float) -> dict[str, Any]:
    seen = BEGIN + timedelta(seconds=second)
    return {"name": "x" * 18, "identifyNumber": number, "seenAt": seen}


def windows(rows: list[tuple[str, str]]) -> Counter[tuple[str, str]]:
    told = [msgspec.json.decode(value) for _, value in rows]
    return Counter({(each["identifyNumber"], each["start"][14:19]): each["seen"] for each in told})


@pytest.fixture
def app(example, topic, schemas, kafka_broker):
    """Two schemas' records on one topic, some that nobody can decode, and a last one."""
    people = topic("people")
    old, new = (Encoder(schemas.url, f"{people}-value", each) for each in (OLD, NEW))
    rows = [
        encode(person(number, second))
        for second in range(0, 40, 4)
        for number, encode in zip((*NUMBERS, "12345678901234567"), (old, new, new), strict=True)
    ]
    cut_off = new(person(NUMBERS[0], 0))[:7]  # its schema is known
    rows += [*LETTERS, cut_off]
    rows += [new(person("1" * 17, 70)), new(person(NUMBERS[0], 90)), old(person(NUMBERS[0], 91))]
    produce(kafka_broker.bootstrap_servers, people, [("", row) for row in rows])
    valid, rejected = topic("valid"), topic("rejected")
    return (
        example(
            "avro_windows",
            *("--registry", schemas.url, "--input-topic", people),
            *("--output-topic", valid, "--dead-letter-topic", rejected),
            *("--state-partitions", "2"),
        ),
        valid,
        rejected,
    )


@pytest.mark.parametrize("play", [pytest.param("dag", marks=pytest.mark.examples)], indirect=True)
def test_its_dag_runs_it_through_two_deaths(app, play, kafka_broker):
    play(app[0], "prepared@1", "decided@2")
    assert_delivered(kafka_broker.bootstrap_servers, *app[1:])


@pytest.mark.examples
def test_a_window_is_seen_when_its_batch_settles_and_uncommitted_before_and_nothing_is_misread(
    app, kafka_broker
):
    app, valid, rejected = app

    def seen(isolation: str) -> Counter[tuple[str, str]]:
        return windows(read_topic(kafka_broker.bootstrap_servers, valid, isolation=isolation))

    app.killed("prepared@2")  # the first batch moves the watermark on, the second has windows
    assert seen("read_uncommitted") == WINDOWS
    assert seen("read_committed") == Counter()
    app.killed("decided@1")  # its batch is evaluated again, and settled by the next driver
    app.run()
    app.assert_rocksdb()
    assert_delivered(kafka_broker.bootstrap_servers, valid, rejected)


def assert_delivered(bootstrap: str, valid: str, rejected: str) -> None:
    rows = read_topic(bootstrap, valid)
    assert windows(rows) == WINDOWS
    assert len(rows) == len(WINDOWS), "no window twice"
    letters = [value for _, value in read_topic(bootstrap, rejected)]
    assert letters == [*(letter.decode() for letter in LETTERS), "\0\0\0\0\2$1"]
