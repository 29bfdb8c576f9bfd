"""The topic that remembers who owns a prefix, on a broker: read again it tells what came since."""

from __future__ import annotations

import uuid
from contextlib import closing

import pytest

from airflow_eos.checkpoint import Decision, Verdict
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.transactions.ownership import PrefixLedger
from airflow_eos.local import EmbeddedKafka

pytestmark = pytest.mark.integration


def decision(batch: int) -> Decision:
    return Decision(
        batch_id=batch,
        attempt=1,
        verdict=Verdict.COMMIT,
        offsets="v1",
        decided_by="driver",
        decided_at_ms=0,
        nonce=uuid.uuid4().hex,
    )


def test_one_reader_reads_all_of_the_topic_each_time(kafka_broker: EmbeddedKafka) -> None:
    settings = KafkaSettings.from_librdkafka({"bootstrap.servers": kafka_broker.bootstrap_servers})
    prefix = f"owned-{uuid.uuid4().hex[:8]}"
    with (
        closing(PrefixLedger(settings, prefix=prefix)) as one,
        closing(PrefixLedger(settings, prefix=prefix)) as other,
    ):
        assert other.read().owner is None
        assert one.claim("/a").owner == "/a"
        assert other.read().owner == "/a"
        for batch in (7, 8):
            one.note(decision(batch))
            assert other.read().newest.batch == batch
            assert one.read().newest.batch == batch, "its reader was closed with the note"
        assert other.claim("/b").owner == "/a"
        assert other.forget() == 2
        assert one.read().owner is None
