"""Transfers with two sides: no reader ever finds one side, in PostgreSQL or in Kafka."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from airflow_eos.core.checkpoint import CheckpointStore, DecisionLog
from airflow_eos.kafka.transactions.identity import as_transaction
from demo.inputs import transfer
from tests.support.auditor import Auditor
from tests.support.examples import Example
from tests.support.groups import Tail
from tests.support.topics import produce, read_topic

BATCH = 100
BATCHES = 4
Side = tuple[str, str, int]


ROWS = [transfer(number) for number in range(BATCHES * BATCH)]
TRANSFERS = [json.loads(value) for _, value in ROWS]


def sides(transfers: Iterable[Mapping[str, Any]]) -> Counter[Side]:
    """What is posted of them: nothing where payer and payee are one."""
    return Counter(
        (told["transfer"], told[of], sign * told["amount"])
        for told in transfers
        if told["payer"] != told["payee"]
        for of, sign in (("payer", -1), ("payee", 1))
    )


SIDES = sides(TRANSFERS)


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

    def events(self, upto: Mapping[int, int] | None = None) -> Counter[Side]:
        """What a ``read_committed`` reader finds now, or of it what is before those offsets."""
        with closing(Tail(self.app.broker.bootstrap_servers, self.topic)) as tail:
            tail.to_the_end()
        told = [
            json.loads(value)
            for (_, partition, offset), value in tail.rows.items()
            if upto is None or offset < upto.get(partition, 0)
        ]
        return Counter((each["transfer"], each["account"], each["amount"]) for each in told)

    @property
    def decided(self) -> int:
        """How many batches."""
        return len(list((self.app.checkpoint / "eos" / "decisions").iterdir()))

    def ends(self, batches: int) -> dict[int, int]:
        """Of each partition, where the first so many batches end, as their decisions say."""
        log = DecisionLog(CheckpointStore.open(self.app.checkpoint))
        written = [
            each
            for batch in range(batches)
            for decision in log.of_batch(batch)
            for work in decision.works
            if work.participant == "events"
            for each in as_transaction(work).written
            if each.topic == self.topic
        ]
        return {
            partition: max(each.last + 1 for each in written if each.partition == partition)
            for partition in {each.partition for each in written}
        }

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
    settled = []
    for place in ("settled@1", "settled@1", "settled-some@1", "settled@1"):
        bank.app.killed(place)
        settled.append(bank.decided if place == "settled@1" else bank.decided - 1)
        assert_no_side_alone(bank, settled[-1])
    assert settled == [1, 2, 2, BATCHES], "it was looked at between the batches"
    bank.app.run()
    assert_no_side_alone(bank, BATCHES)
    first, *others = bank.ends(1)
    mixed = bank.events(upto={first: bank.ends(1)[first]} | {p: bank.ends(2)[p] for p in others})
    assert [side for side in mixed if opposite(mixed, side) != 1], "or the looks show nothing"
    assert_posted(bank, auditor)


def assert_no_side_alone(bank: Bank, settled: int) -> None:
    """At the offsets of each of the first batches: all transfers until then, with both sides."""
    for batches in range(1, settled + 1):
        seen = bank.events(upto=bank.ends(batches))
        assert [side for side in seen if opposite(seen, side) != 1] == []
        assert seen == sides(TRANSFERS[: batches * BATCH]), f"at the offsets of batch {batches - 1}"


def assert_posted(bank: Bank, auditor: Auditor) -> None:
    auditor.end()
    assert auditor.unbalanced == []
    assert auditor.looks > 1000
    assert len(auditor.rows_seen) > 2, "it looked while rows came"
    assert bank.books() == bank.events() == SIDES
    letters = read_topic(bank.app.broker.bootstrap_servers, bank.rejected)
    assert len(letters) == len(TRANSFERS) - len(SIDES) // 2 > 0
    assert {json.loads(value)["problem"] for _, value in letters} == {"payer and payee are one"}


def opposite(events: Counter[Side], side: Side) -> int:
    """How often the other side is there."""
    name, account, amount = side
    return sum(
        times
        for (other, of, moved), times in events.items()
        if (other, moved) == (name, -amount) and of != account
    )
