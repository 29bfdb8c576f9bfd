"""Short words for the facts of the planner's tests: one default world, changed by keywords."""

from __future__ import annotations

from airflow_eos.core.checkpoint.progress import CheckpointState
from airflow_eos.core.protocol.decision import DEFAULT_PARTICIPANT, OpenWork, Outcome
from airflow_eos.core.recovery.facts import Facts
from airflow_eos.kafka.transactions.identity import OffsetRange, PreparedTransaction, as_work
from tests.support import beats
from tests.support.pipelines import abort_of, commit_of, kafka_member, kafka_pipeline

NOW = 1_800_000_000_000
OPENED = NOW - 40_000
TIMEOUT = 60_000
PREFIX = "orders-etl"
NONCE = "0" * 32


def prepared(task=0, *, epoch=0, producer=7, rows=100, content="a", attempt=0):
    transaction = PreparedTransaction(
        transactional_id=f"{PREFIX}-{task}-{attempt}",
        producer_id=producer,
        producer_epoch=epoch,
        written=(OffsetRange("out", 0, 10 * task, 10 * task + rows),),
        rows=rows,
        fingerprint=content.rjust(32, "0"),
        opened_at_ms=OPENED,
        timeout_ms=TIMEOUT,
    )
    return as_work(transaction, DEFAULT_PARTICIPANT)


def still_open(work=None, *, key=None):
    work = work or prepared()
    return OpenWork(
        kind=work.kind,
        participant=work.participant,
        key=key or work.key,
        opened_at_ms=OPENED,
        timeout_ms=TIMEOUT,
        places=("out/0",),
    )


def commit(*works, attempt=1, batch=5):
    return commit_of(batch, *works, attempt=attempt, decided_at_ms=OPENED, nonce=NONCE)


def sealed(attempt=1, batch=5):
    return abort_of(batch, attempt=attempt, decided_at_ms=OPENED, nonce=NONCE)


def checkpoint(offsets=5, commits=4, committed_at_ms=None, planned_at_ms=None):
    return CheckpointState(
        query_id="q",
        latest_offsets=offsets,
        latest_commit=commits,
        in_flight=offsets if offsets != commits else None,
        committed_at_ms=committed_at_ms,
        planned_at_ms=planned_at_ms,
        sources=(),
    )


def heartbeat(phase="preparing", age_ms=1_000, interval_ms=2_000):
    return beats.heartbeat(
        phase, batch_id=5, beat_at_ms=NOW - age_ms, interval_ms=interval_ms, started_at_ms=OPENED
    )


def pipeline(prefix=PREFIX):
    return kafka_pipeline(prefix)


def facts(**changes):
    """Batch 5 is in flight, nothing is listed, nothing was decided."""
    world = {
        "location": "/checkpoint",
        "asked": (kafka_member(PREFIX),),
        "pipeline": pipeline(),
        "checkpoint": checkpoint(),
        "listed_batch": 5,
        "decisions": (),
        "listed": (),
        "outcomes": {},
        "heartbeat": None,
        "now_ms": NOW,
    }
    return Facts(**(world | changes))


def what_became(committed=(), aborted=(), unknown=(), undecided=()):
    return (
        {each.identity: Outcome.COMMITTED for each in committed}
        | {each.identity: Outcome.ABORTED for each in aborted}
        | {each.identity: Outcome.UNKNOWN for each in unknown}
        | {each.identity: Outcome.OPEN for each in undecided}
    )
