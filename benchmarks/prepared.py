"""Makes what a driver that dies in a batch leaves: checkpoint, decisions, open transactions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pyarrow as pa

from airflow_eos.arrow.producer.writer import TransactionalWriter
from airflow_eos.core.checkpoint import CheckpointStore, Decision, Verdict
from airflow_eos.core.protocol.decision import DEFAULT_PARTICIPANT, PreparedWork
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.participant import KafkaParticipant
from airflow_eos.kafka.transactions.identity import as_work, transactional_id_of
from airflow_eos.kafka.transactions.ownership import PrefixLedger
from benchmarks import checkpoints
from benchmarks.stage import Stage

_TIMEOUT_MS = 900_000
T = TypeVar("T")


def decision_on(
    batch_id: int, attempt: int, verdict: Verdict, works: tuple[PreparedWork, ...]
) -> Decision:
    """Make a decision as a driver does."""
    return Decision(
        batch_id=batch_id,
        attempt=attempt,
        verdict=verdict,
        works=works,
        offsets="v1\n{}\n{}" if verdict is Verdict.COMMIT else None,
        reason="" if verdict is Verdict.COMMIT else "benchmark",
        decided_by="benchmark",
        decided_at_ms=time.time_ns() // 1_000_000,
        nonce=uuid.uuid4().hex,
    )


def settings_of(stage: Stage) -> KafkaSettings:
    """Return the Kafka settings of the stage's broker."""
    return KafkaSettings.from_librdkafka({"bootstrap.servers": stage.bootstrap})


def pipeline(
    stage: Stage, wire: ConnectionPool, prefix: str, *, batches: int
) -> tuple[CheckpointStore, KafkaParticipant]:
    """Make a checkpoint, and the participant of its decisions, as a start owns them."""
    ledger = PrefixLedger(settings_of(stage), prefix=prefix)
    participant = KafkaParticipant(wire, ledger, name=DEFAULT_PARTICIPANT, target="kafka:out")
    store = CheckpointStore.open(stage.folder / prefix)
    participant.claim(checkpoints.make(store, participant.members[0], batches=batches))
    return store, participant


def open_transactions(wire: ConnectionPool, prefix: str, count: int) -> tuple[PreparedWork, ...]:
    """Open transactions of one row each, which go to the partitions of topic ``out`` by key."""
    with ThreadPoolExecutor(4) as pool:
        return tuple(
            pool.map(
                lambda task: _prepare(wire, transactional_id_of(prefix, task, 0)), range(count)
            )
        )


def _prepare(wire: ConnectionPool, transactional_id: str) -> PreparedWork:
    writer = TransactionalWriter(wire, topic="out")
    writer.begin(transactional_id, _TIMEOUT_MS)
    row = {"value": pa.array([b"row"]), "key": pa.array([transactional_id.encode()])}
    writer.write(pa.RecordBatch.from_pydict(row))
    written = writer.prepare()
    transaction = written.prepared("0" * 32) if written is not None else None
    assert transaction is not None
    return as_work(transaction, DEFAULT_PARTICIPANT)


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Run ``work``; return its seconds and its result."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def seconds_of(work: Callable[[], object]) -> float:
    """Run ``work``; return its seconds."""
    return timed(work)[0]
