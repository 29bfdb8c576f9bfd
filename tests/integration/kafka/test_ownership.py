"""The topic that remembers who owns a prefix, on a broker: read again it tells what came since."""

from __future__ import annotations

import uuid
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer
from msgspec import structs

from airflow_eos.core.checkpoint import CheckpointStore, Decision, claim
from airflow_eos.core.checkpoint.pipeline import owner_of
from airflow_eos.errors import OwnershipError, TopicError
from airflow_eos.kafka.client.compacted_topic import require_topic
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.transactions.ownership import PrefixLedger
from airflow_eos.local import EmbeddedKafka
from airflow_eos.ops.supervision.preflight import of_prefix, require_prefix_free
from tests.support.pipelines import commit_of, kafka_pipeline, owner_at
from tests.support.topics import produce


def decision(batch: int) -> Decision:
    return commit_of(batch)


def test_one_reader_reads_all_of_the_topic_each_time(kafka_broker: EmbeddedKafka) -> None:
    settings = KafkaSettings.from_librdkafka({"bootstrap.servers": kafka_broker.bootstrap_servers})
    prefix = f"owned-{uuid.uuid4().hex[:8]}"
    with (
        closing(PrefixLedger(settings, prefix=prefix)) as one,
        closing(PrefixLedger(settings, prefix=prefix)) as other,
    ):
        assert other.read().owner is None
        assert one.claim(owner_at("/a")).owner == owner_at("/a")
        assert other.read().owner == owner_at("/a")
        for batch in (7, 8):
            one.note(decision(batch), owner_at("/a"))
            assert other.read().newest().batch == batch
            assert one.read().newest().batch == batch, "its reader was closed with the note"
        assert other.claim(owner_at("/b")).owner == owner_at("/a")
        assert other.forget() == 2
        assert one.read().owner is None


def test_a_strangers_open_transaction_hides_no_claim_and_no_note(
    kafka_broker: EmbeddedKafka,
) -> None:
    """Whoever may write to the topic may leave one open, as a mirror does that was killed."""
    settings = KafkaSettings.from_librdkafka({"bootstrap.servers": kafka_broker.bootstrap_servers})
    prefix = f"owned-{uuid.uuid4().hex[:8]}"
    with (
        closing(PrefixLedger(settings, prefix=prefix)) as one,
        closing(PrefixLedger(settings, prefix=prefix)) as other,
    ):
        one.claim(owner_at("/a"))
        stranger = Producer({**settings.librdkafka(), "transactional.id": f"stranger-{prefix}"})
        stranger.init_transactions(30)
        stranger.begin_transaction()
        stranger.produce(settings.prefixes_topic, b"{}", b"?")
        stranger.flush(30)
        try:
            one.note(decision(7), owner_at("/a"))
            found = other.read()
            assert (found.owner, found.newest().batch) == (owner_at("/a"), 7)
        finally:
            stranger.abort_transaction(30)


def test_a_prefix_of_another_checkpoint_is_refused_before_anything_is_started(
    kafka_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    settings = KafkaSettings.from_librdkafka({"bootstrap.servers": kafka_broker.bootstrap_servers})
    prefix = f"owned-{uuid.uuid4().hex[:8]}"
    own, other = CheckpointStore.open(tmp_path / "a"), CheckpointStore.open(tmp_path / "b")
    claim(own, kafka_pipeline(prefix))
    require_prefix_free(settings, prefix, other)
    with closing(PrefixLedger(settings, prefix=prefix)) as ledger:
        ledger.claim(owner_of(own))
    require_prefix_free(settings, prefix, own)
    with pytest.raises(OwnershipError, match=f"'{prefix}' belongs to the checkpoint .*/a, not to "):
        require_prefix_free(settings, prefix, other)


def test_a_prefix_is_asked_for_by_the_name_that_the_checkpoint_has_for_it(
    kafka_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    """Of an output that is not called sink, whose work another name would not understand."""
    settings = KafkaSettings.from_librdkafka({"bootstrap.servers": kafka_broker.bootstrap_servers})
    store, pipeline = CheckpointStore.open(tmp_path / "a"), kafka_pipeline("etl")
    [member] = pipeline.participants
    claim(store, structs.replace(pipeline, participants=(structs.replace(member, name="orders"),)))
    for prefix, name in (("etl", "orders"), ("another", "sink")):
        with closing(of_prefix(settings, prefix, store)) as participant:
            assert [each.name for each in participant.members] == [name]


@pytest.mark.parametrize(
    ("partitions", "policy"), [(1, "delete"), (1, "compact,delete"), (2, "compact")]
)
def test_a_topic_that_could_forget_a_note_or_has_no_order_is_refused_by_name(
    kafka_broker: EmbeddedKafka, partitions: int, policy: str
) -> None:
    settings = KafkaSettings.from_librdkafka({"bootstrap.servers": kafka_broker.bootstrap_servers})
    topic = f"notes-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(topic, partitions, {"cleanup.policy": policy})
    produce(kafka_broker.bootstrap_servers, topic, [("k", "v")])
    found = f"Topic '{topic}' has cleanup.policy={policy} and {partitions} partitions"
    with pytest.raises(TopicError, match=found) as refused:
        require_topic(settings, topic)
    (remedy,) = refused.value.remedies
    assert all(topic in command for command in remedy.commands)


def test_a_topic_that_is_absent_is_made_so_that_it_forgets_nothing(
    kafka_broker: EmbeddedKafka,
) -> None:
    settings = KafkaSettings.from_librdkafka({"bootstrap.servers": kafka_broker.bootstrap_servers})
    topic = f"notes-{uuid.uuid4().hex[:8]}"
    require_topic(settings, topic)
    require_topic(settings, topic)  # what it has made, it takes


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_an_empty_topic_that_a_strangers_look_has_made_is_altered(
    kafka_broker: EmbeddedKafka, policy: str
) -> None:
    """Kafka makes what is looked for (``auto.create.topics.enable``), and not compacted."""
    settings = KafkaSettings.from_librdkafka({"bootstrap.servers": kafka_broker.bootstrap_servers})
    topic = f"notes-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(topic, 1, {"cleanup.policy": policy})
    require_topic(settings, topic)
    with ConnectionPool(settings) as wire:
        assert wire.cluster.topic_config(topic, ["cleanup.policy"]) == {"cleanup.policy": "compact"}


def test_an_empty_topic_of_several_partitions_is_refused_with_commands(
    kafka_broker: EmbeddedKafka,
) -> None:
    """Kafka cannot take partitions away (``num.partitions`` of the broker made them)."""
    settings = KafkaSettings.from_librdkafka({"bootstrap.servers": kafka_broker.bootstrap_servers})
    topic = f"notes-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(topic, 3)
    with pytest.raises(TopicError, match="3 partitions") as refused:
        require_topic(settings, topic)
    (remedy,) = refused.value.remedies
    assert ["--delete" in each for each in remedy.commands] == [True, False]
