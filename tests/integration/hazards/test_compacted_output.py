"""An output topic that compacts while a promise on it is open, or half kept."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka import Producer

from airflow_eos.core.checkpoint import Decision
from airflow_eos.core.protocol.decision import DEFAULT_PARTICIPANT, Outcome
from airflow_eos.errors import DecisionNeededError
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.transactions.identity import as_transaction, named
from airflow_eos.kafka.transactions.outcomes import outcomes
from airflow_eos.local import EmbeddedKafka
from airflow_eos.recovery import resolve
from tests.integration.hazards.direct import Direct, wait_for

pytestmark = pytest.mark.long

PARTITIONS = 2
COMPACTING = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.001",
    "delete.retention.ms": "0",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedKafka]:
    soon = {
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
        "transactional.id.expiration.ms": "2000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
        "log.cleaner.backoff.ms": "100",
        "log.segment.delete.delay.ms": "100",
    }
    with EmbeddedKafka(soon) as running:
        yield running


@pytest.fixture
def pipeline(broker: EmbeddedKafka, tmp_path: Path) -> Direct:
    topic = broker.create_topic(f"out-{uuid.uuid4().hex[:8]}", PARTITIONS, COMPACTING)
    return Direct(broker.bootstrap_servers, tmp_path, topic, timeout=timedelta(seconds=45))


@pytest.fixture
def promised(pipeline: Direct, die_at: Callable[[str], None]) -> Callable[[str], Decision]:
    """Rows of three tasks, no key twice, decided; the driver died at ``place``."""

    def dead_at(place: str) -> Decision:
        pipeline.feed(*[[(f"{task}-{i}", f"ours-{task}-{i}") for i in range(20)] for task in "abc"])
        die_at(place)
        with pytest.raises(RuntimeError, match=place):
            pipeline.run()
        die_at("")
        return next(d for d in pipeline.decisions.of_batch(0) if d.works)

    return dead_at


def write(pipeline: Direct, keys: Sequence[str], value: str) -> None:
    """Somebody else writes the same keys, to every partition."""
    producer = Producer({"bootstrap.servers": pipeline.bootstrap})
    for key in keys:
        for partition in range(PARTITIONS):
            producer.produce(pipeline.topic, value, key, partition)
    assert producer.flush(30) == 0


def ours(pipeline: Direct) -> list[str]:
    return sorted(value for _, value in pipeline.visible() if value.startswith("ours"))


def test_an_open_promise_is_not_compacted_and_every_row_of_it_is_delivered(pipeline, promised):
    """Kafka's cleaner stops at the first unstable offset (``LogCleanerManager``)."""
    write(pipeline, ["before"], "superseded")
    write(pipeline, ["before"], "kept")
    promised("decided")

    def cleaned() -> bool:
        write(pipeline, ["before", "a-0", "b-0", "c-0"], "later")
        return ("before", "superseded") not in pipeline.visible()

    wait_for(cleaned)
    assert len(pipeline.open_transactions()) == 3
    pipeline.run()
    fed = {row for task in pipeline.batches[0].tasks for row in task if not row[0].endswith("-0")}
    assert fed <= set(pipeline.visible())
    assert pipeline.open_transactions() == []


def test_what_compaction_hides_of_a_half_kept_promise_is_asked_and_never_guessed(
    pipeline, promised
):
    """What was kept is superseded, the rest timed out, the ids are forgotten: nothing tells."""
    pipeline.timeout = timedelta(seconds=8)
    prepared = [as_transaction(work) for work in promised("settled-some").works]
    still_open = set(pipeline.open_transactions())
    truth = {
        each.identity: Outcome.ABORTED if each.transactional_id in still_open else Outcome.COMMITTED
        for each in prepared
    }
    delivered = ours(pipeline)
    keys = [row.split("-", 1)[1] for row in delivered]

    def hidden() -> bool:
        """Not before the open ones timed out: they hold the cleaner back."""
        write(pipeline, keys, "later")
        with ConnectionPool(pipeline.settings) as wire:
            found = outcomes(wire, prepared)
        assert all(found[i] in {truth[i], Outcome.OPEN, Outcome.UNKNOWN} for i in truth), found
        return set(found.values()) == {Outcome.UNKNOWN}

    wait_for(hidden)
    with pytest.raises(DecisionNeededError, match="nobody can tell any more whether 3 promised"):
        pipeline.run()
    assert ours(pipeline) == [], "something was written anew before a person ruled"
    for identity, became in truth.items():
        resolve(pipeline.store, named(identity, DEFAULT_PARTICIPANT), became)
    pipeline.timeout = timedelta(seconds=45)
    pipeline.run()
    everything = {value for task in pipeline.batches[0].tasks for _, value in task}
    assert ours(pipeline) == sorted(everything - set(delivered))
    assert pipeline.open_transactions() == []
