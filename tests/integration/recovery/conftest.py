"""A pipeline that died: a Spark checkpoint in its own words, and real transactions on a broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_eos.arrow.producer.writer import TransactionalWriter
from airflow_eos.core.checkpoint import CheckpointStore, DecisionLog, PipelineIdentity, claim
from airflow_eos.core.protocol.decision import DEFAULT_PARTICIPANT
from airflow_eos.core.protocol.participant import Owner
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.participant import KafkaParticipant
from airflow_eos.kafka.transactions.coordinator import TransactionCoordinator, end_transactions
from airflow_eos.kafka.transactions.identity import (
    PreparedTransaction,
    as_work,
    transactional_id_of,
)
from airflow_eos.kafka.transactions.listing import list_open
from airflow_eos.kafka.transactions.ownership import PrefixLedger
from airflow_eos.ops.audit.compare import parse
from airflow_eos.ops.audit.rows import reader
from tests.support.pipelines import commit_of

BATCH = 5
PIPELINE = uuid.uuid4().hex


@dataclass
class DeadPipeline:
    """Batch 5 is in flight; tests say what was written, decided and ended before the death."""

    wire: ConnectionPool
    settings: KafkaSettings
    store: CheckpointStore
    topic: str
    prefix: str
    timeout_ms: int = 60_000
    coordinator: TransactionCoordinator = field(init=False)
    log: DecisionLog = field(init=False)
    ledger: PrefixLedger = field(init=False)
    participant: KafkaParticipant = field(init=False)

    def __post_init__(self) -> None:
        self.coordinator = TransactionCoordinator(self.wire)
        self.log = DecisionLog(self.store)
        self.ledger = PrefixLedger(self.settings, prefix=self.prefix)
        self.participant = KafkaParticipant(
            self.wire, self.ledger, name=DEFAULT_PARTICIPANT, target=f"kafka:{self.topic}"
        )
        self.spark_wrote(offsets=BATCH, commits=BATCH - 1)

    def spark_wrote(self, *, offsets: int, commits: int, reads: str = "", until: int = 100) -> None:
        """Spark's own files, old enough not to look alive; ``reads``: the topic of the input."""
        source = json.dumps({reads or self.topic: {"0": until}})
        head = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}})
        spark = {
            "metadata": json.dumps({"id": str(uuid.uuid4())}),
            f"offsets/{offsets - 1}": f"v1\n{head}\n{source}",
            f"offsets/{offsets}": f"v1\n{head}\n{source}",
            f"commits/{commits}": 'v1\n{"nextBatchWatermarkMs":0}',
            "sources/0/0": "\0v1\n" + json.dumps({reads or self.topic: {"0": 0}}),
        }
        for path, text in spark.items():
            self.store.put(path, text.encode())
            long_ago = time.time() - 600
            os.utime(f"{self.store.location}/{path}", (long_ago, long_ago))

    @property
    def owner(self) -> Owner:
        return Owner.at(PIPELINE, self.store.location)

    def owned(self) -> None:
        """As a start leaves it: the pipeline has its id, and the prefix is claimed."""
        claim(
            self.store,
            PipelineIdentity(
                id=PIPELINE,
                participants=self.participant.members,
                created_at_ms=0,
                created_by="test",
            ),
        )
        self.ledger.claim(self.owner)

    def write(self, task: int, values: list[str], prefix: str | None = None) -> PreparedTransaction:
        """A transaction as a task leaves it: acknowledged and open."""
        writer = TransactionalWriter(self.wire, topic=self.topic)
        writer.begin(transactional_id_of(prefix or self.prefix, task, 0), self.timeout_ms)
        writer.write(pa.record_batch({"value": pa.array([v.encode() for v in values])}))
        written = writer.prepare()
        assert written is not None
        assert written.identity is not None
        return PreparedTransaction(
            transactional_id=written.identity.transactional_id,
            producer_id=written.identity.producer_id,
            producer_epoch=written.identity.producer_epoch,
            written=written.written,
            rows=written.rows,
            fingerprint=uuid.uuid5(uuid.NAMESPACE_OID, ",".join(values)).hex,
            opened_at_ms=written.opened_at_ms,
            timeout_ms=written.timeout_ms,
        )

    def decided(
        self, *transactions: PreparedTransaction, attempt: int = 1, term: int | None = None
    ) -> None:
        assert self.log.record(
            commit_of(
                BATCH,
                *(as_work(each, DEFAULT_PARTICIPANT) for each in transactions),
                attempt=attempt,
                term=term,
                decided_at_ms=time.time_ns() // 1_000_000,
            )
        )

    def end(self, *transactions: PreparedTransaction, commit: bool) -> None:
        identities = [each.identity for each in transactions]
        for _ in range(2):  # the second one is answered once the markers are in the log
            end_transactions(self.wire, identities, commit=commit)

    def forget_rows_below(self, offset: int) -> None:
        """What retention does, at once."""
        admin = AdminClient({"bootstrap.servers": self.settings.bootstrap_servers})
        place = TopicPartition(self.topic, 0, offset)
        admin.delete_records([place])[place].result(30)

    def still_open(self) -> list[str]:
        return [each.transactional_id for each in list_open(self.wire, self.prefix)]

    def visible(self) -> list[str]:
        """What a read_committed reader has now, by librdkafka."""
        value = parse("value")
        consumer = reader(self.settings, "read_committed")
        try:
            consumer.assign([TopicPartition(self.topic, 0, 0)])
            values: list[str] = []
            while True:
                for message in consumer.consume(1000, timeout=0.1):
                    if message.error():
                        return sorted(values)
                    values.append((value(message) or b"").decode())
        finally:
            consumer.close()

    def cli(self, *arguments: str, failpoint: str | None = None, kafka: str | None = None):
        """``airflow-eos`` in a process of its own, which a failpoint may kill."""
        environment = dict(os.environ)
        if failpoint:
            environment["EOS_FAILPOINTS"] = f"{failpoint}=kill"
        servers = kafka or self.settings.bootstrap_servers
        command = [sys.executable, "-c", "from airflow_eos.cli.app import main; main()"]
        return subprocess.Popen(
            [*command, *arguments, "--bootstrap-servers", servers],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def dead(kafka_broker, topic, tmp_path):
    settings = KafkaSettings.from_librdkafka({"bootstrap.servers": kafka_broker.bootstrap_servers})
    with ConnectionPool(settings) as wire:
        pipeline = DeadPipeline(
            wire,
            settings,
            CheckpointStore.open(tmp_path / "checkpoint"),
            topic("out"),
            f"etl-{uuid.uuid4().hex[:8]}",
        )
        pipeline.owned()
        yield pipeline
        left = [each.identity for each in list_open(pipeline.wire, pipeline.prefix)]
        end_transactions(pipeline.wire, left, commit=False)
