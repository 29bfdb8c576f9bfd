"""Transfers with two sides: no reader ever finds one side, in PostgreSQL or in Kafka."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest

from demo.inputs import transfer
from tests.support.auditor import Auditor
from tests.support.examples import Example
from tests.support.topics import produce, read_topic

BATCH = 100
BATCHES = 4
Side = tuple[str, str, int]


ROWS = [transfer(number) for number in range(BATCHES * BATCH)]
TRANSFERS = [json.loads(value) for _, value in ROWS]
POSTED = [told for told in TRANSFERS if told["payer"] != told["payee"]]
SIDES = Counter(
    (told["transfer"], told[of], sign * told["amount"])
    for told in POSTED
    for of, sign in (("payer", -1), ("payee", 1))
)


@dataclass(frozen=True)
class Bank:
    """The app, and where it posts."""

    app: Example
    dsn: str
    topic: str
    rejected: str

    @property
    def table(self) -> str:
        return self.topic.replace("-", "_")

    def events(self) -> Counter[Side]:
        """What a ``read_committed`` reader finds now."""
        rows = read_topic(self.app.broker.bootstrap_servers, self.topic)
        told = [json.loads(value) for _, value in rows]
        return Counter((each["transfer"], each["account"], each["amount"]) for each in told)

    def books(self) -> Counter[Side]:
        with psycopg.connect(self.dsn) as connection:
            rows = connection.execute(f"SELECT transfer, account, amount FROM {self.table}")
            return Counter(rows.fetchall())


@pytest.fixture
def bank(example, topic, servers, kafka_broker) -> Bank:
    transfers, postings = topic("transfers"), topic("postings", 3)
    rejected, dsn = topic("rejected"), servers.of(["postgres"])["postgres"]
    app = example(
        "transfers",
        *("--input-topic", transfers, "--output-topic", postings),
        *("--dead-letter-topic", rejected, "--table", postings.replace("-", "_")),
        *("--max-offsets-per-trigger", str(BATCH)),
        reach={"books": dsn},
    )
    bank = Bank(app, dsn, postings, rejected)
    with psycopg.connect(dsn, autocommit=True) as connection:
        columns = "transfer text, account text, amount bigint"
        connection.execute(f"CREATE TABLE {bank.table} ({columns})")
    produce(kafka_broker.bootstrap_servers, transfers, ROWS)
    return bank


@pytest.fixture
def auditor(bank: Bank) -> Iterator[Auditor]:
    looking = Auditor(bank.dsn, bank.table)
    looking.start()
    yield looking
    looking.end()


@pytest.mark.parametrize("play", [pytest.param("dag", marks=pytest.mark.examples)], indirect=True)
def test_its_dag_runs_it_through_two_deaths(bank: Bank, auditor: Auditor, play) -> None:
    play(bank.app, "settled-some@2", "decided@2")
    assert_posted(bank, auditor)


@pytest.mark.examples
def test_the_sum_is_constant_at_every_look_and_no_settled_posting_in_kafka_has_one_side(
    bank: Bank, auditor: Auditor
) -> None:
    found = []
    for place in ("settled@1", "settled-some@1", "settled@2"):
        bank.app.killed(place)
        if place.startswith("settled@"):
            found.append(bank.events())
    bank.app.run()
    found.append(bank.events())

    for events in found:
        assert [side for side in events if opposite(events, side) != 1] == []
        assert events <= SIDES
    assert len({len(events) for events in found}) == 3, "each look saw more"
    assert_posted(bank, auditor)


def assert_posted(bank: Bank, auditor: Auditor) -> None:
    auditor.end()
    assert auditor.unbalanced == []
    assert auditor.looks > 1000
    assert len(auditor.rows_seen) > 2, "it looked while rows came"
    assert bank.books() == bank.events() == SIDES
    letters = read_topic(bank.app.broker.bootstrap_servers, bank.rejected)
    assert len(letters) == len(TRANSFERS) - len(POSTED) > 0
    assert {json.loads(value)["problem"] for _, value in letters} == {"payer and payee are one"}


def opposite(events: Counter[Side], side: Side) -> int:
    """How often the other side is there."""
    name, account, amount = side
    return sum(
        times
        for (other, of, moved), times in events.items()
        if (other, moved) == (name, -amount) and of != account
    )
