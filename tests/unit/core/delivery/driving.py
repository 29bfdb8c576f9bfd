"""The batch driver on a sink and a broker that can be seen through: one place that builds it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import obstore.store

from airflow_eos.core.checkpoint import CheckpointStore, Decision, DecisionLog, Verdict
from airflow_eos.core.delivery.batch import ExactlyOnceBatch
from airflow_eos.core.protocol.decision import Outcome, WorkIdentity
from tests.support.authority import authority_of
from tests.unit.core.delivery.fakes import FakeBroker, FakeParticipant

Rulings = Callable[[Collection[WorkIdentity]], Mapping[WorkIdentity, Outcome]]


def decision_log() -> DecisionLog:
    return DecisionLog(CheckpointStore(obstore.store.MemoryStore(), "memory"))


def driver(
    sink: Any,
    broker: FakeBroker,
    log: DecisionLog,
    *,
    name: str = "driver 1",
    rulings: Rulings = lambda _unknown: {},
    progress: Any = None,
    cut: Any = lambda _promise, _accepted: None,
    confirm: Callable[[], None] = lambda: None,
) -> Any:
    return ExactlyOnceBatch(
        sink,
        FakeParticipant(broker),
        log,
        authority_of(log._store, log),
        rulings=rulings,
        driver=name,
        on_phase=lambda _batch, _phase: None,
        progress=progress,
        cut=cut,
        confirm=confirm,
    )


def commits(log: DecisionLog, batch: int = 0) -> list[Decision]:
    return [d for d in log.of_batch(batch) if d.verdict is Verdict.COMMIT]
