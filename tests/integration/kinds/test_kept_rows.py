"""``keep_rows``: what Kafka lost is written again as it was, whatever the query gives by now.

One output has a random number in each row, the other is a table of PostgreSQL: where that one has
its rows, and Kafka has lost what was promised in the same decision, only what was kept can make
both whole.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_eos.errors import NonDeterministicReplayError
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.transactions.coordinator import end_transactions
from tests.integration.kinds.delivery import BATCH, Delivery, acting
from tests.support.kinds.apart import RandomAndPostgres, RandomDelta, kept_beside
from tests.support.kinds.place import Rows
from tests.support.pipeline import KILLED

KEPT = pytest.mark.parametrize("kind", ["random-kept+postgres"])
REPLAYING = ("before-prepare", "prepared", "decided", "settled-some", "settled")


def lose(delivery: Delivery) -> None:
    """As the broker does at the timeout."""
    with ConnectionPool(KafkaSettings.from_librdkafka(delivery.at.kafka or {})) as wire:
        lost = [each.identity for each in delivery.pipeline.open_transactions()]
        assert lost, "there must be something to lose"
        end_transactions(wire, lost, commit=False)


def split(delivery: Delivery) -> Rows:
    """Batch 1 is decided: PostgreSQL commits, Kafka aborts. What was promised to Kafka."""
    delivery.decided()
    promised = kept_beside(delivery.at, 1)
    lose(delivery)
    assert delivery.recover() == 0
    assert delivery.kind.inputs(delivery.at, delivery.pipeline.expected) == {
        "orders": BATCH,
        "postings": 2 * BATCH,
    }
    return promised


def killed_again(delivery: Delivery, place: str) -> None:
    """A place kills once in a folder; the driver before may have died there."""
    (delivery.pipeline.folder / f"{place}.hit").unlink(missing_ok=True)
    delivery.killed(place)


def assert_as_promised(delivery: Delivery, promised: Rows) -> None:
    delivery.assert_exactly_once()
    assert promised.total() == BATCH
    assert isinstance(delivery.kind, RandomAndPostgres)
    assert promised - delivery.kind.very(delivery.at) == {}, "other numbers than were promised"
    folder = Path(delivery.pipeline.checkpoint, "eos", "kept", "orders", "perishable")
    assert [each for each in folder.rglob("*") if each.is_file()] == []


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["random+postgres"])
def test_where_no_rows_are_kept_the_outcomes_are_split_for_ever(delivery: Delivery) -> None:
    split(delivery)
    with pytest.raises(NonDeterministicReplayError):
        delivery.resume()
    assert delivery.kind.left(delivery.at) == 0


@pytest.mark.proof
@KEPT
def test_kafka_gets_the_very_rows_that_it_lost(delivery: Delivery) -> None:
    promised = split(delivery)
    delivery.pipeline.feed(BATCH // 4)
    delivery.resume()
    assert_as_promised(delivery, promised)


@pytest.mark.proof
@pytest.mark.parametrize("place", REPLAYING)
@KEPT
def test_a_driver_that_replays_them_is_killed(delivery: Delivery, place: str) -> None:
    promised = split(delivery)
    killed_again(delivery, place)
    delivery.resume()
    assert_as_promised(delivery, promised)


@pytest.mark.proof
@KEPT
def test_a_replay_of_them_that_times_out_is_replayed_again(delivery: Delivery) -> None:
    promised = split(delivery)
    for _ in range(2):
        killed_again(delivery, "decided")
        lose(delivery)
    delivery.resume()
    assert_as_promised(delivery, promised)


@pytest.mark.proof
@KEPT
def test_a_worker_dies_once_its_rows_are_kept(delivery: Delivery) -> None:
    """Spark runs the task again: another transaction, and other numbers."""
    delivery.pipeline.feed(2 * BATCH)
    delivery.pipeline.run(failpoints=acting("kill", "task-kept@2"))
    assert (delivery.pipeline.folder / "task-kept.hit").exists()
    delivery.assert_exactly_once()
    assert kept_beside(delivery.at, 1) == {}


@pytest.mark.proof
@KEPT
def test_what_was_kept_and_never_decided_is_left_nowhere(delivery: Delivery) -> None:
    delivery.pipeline.feed(2 * BATCH)
    delivery.killed("prepared@2")
    assert kept_beside(delivery.at, 0) == {}, "its batch is over"
    assert kept_beside(delivery.at, 1).total() == BATCH
    delivery.killed("before-prepare")
    assert kept_beside(delivery.at, 1) == {}, "of an attempt that was sealed"
    delivery.resume()
    delivery.assert_exactly_once()
    assert kept_beside(delivery.at, 1) == {}


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["random-kept-delta"])
def test_a_table_gets_the_very_rows_that_were_lost_with_its_files(delivery: Delivery) -> None:
    """Who is alone has them kept too: as a list of one output, under the name of a sink alone."""
    delivery.decided()
    promised = kept_beside(delivery.at, 1, "sink")
    assert isinstance(delivery.kind, RandomDelta)
    notes = Path(delivery.pipeline.checkpoint, "eos", "works", "sink").iterdir()
    next(delivery.kind.data(delivery.at) / f"{note.name}.parquet" for note in notes).unlink()
    delivery.resume()
    delivery.assert_exactly_once()
    assert promised.total() == BATCH
    assert promised - delivery.kind.very(delivery.at) == {}
    assert kept_beside(delivery.at, 1, "sink") == {}


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["random+postgres"])
def test_a_promise_that_only_postgres_keeps_is_not_compared(delivery: Delivery) -> None:
    """Kafka has its rows; that the query gives others now is nobody's loss."""
    delivery.decided()
    delivery.resume()
    delivery.assert_exactly_once()


def _killed_before_it_is_over(delivery: Delivery) -> None:
    delivery.pipeline.run(expect=KILLED, failpoints=acting("kill", "settled@2"))


@KEPT
def test_what_was_kept_goes_with_the_batch_that_a_crash_has_left(delivery: Delivery) -> None:
    delivery.pipeline.feed(2 * BATCH)
    _killed_before_it_is_over(delivery)
    assert kept_beside(delivery.at, 1).total() == BATCH
    delivery.resume()
    delivery.assert_exactly_once()
    assert kept_beside(delivery.at, 1) == {}
