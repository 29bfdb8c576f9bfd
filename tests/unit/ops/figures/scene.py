"""A driver on a sink and a broker that can be seen through, observed as a real one is."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import obstore.store

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.delivery.batch import ExactlyOnceBatch
from airflow_eos.core.delivery.beats import BeatLoop
from airflow_eos.core.delivery.observed import (
    observed_decisions,
    observed_participant,
    observed_store,
)
from airflow_eos.core.delivery.observer import Observer, Started
from airflow_eos.core.delivery.query import GuardedBatch
from tests.support.authority import authority_of
from tests.unit.core.delivery.fakes import FakeBroker, FakeFrame, FakeParticipant, FakeSink

ROWS = FakeFrame(["a", "b"], [], ["c"])


def spark_says(batch: int, planned_s: float, took_ms: int) -> Mapping[str, Any]:
    """The fields that are read of what Spark 4.2 said of a batch (its values are ours)."""
    at = datetime.fromtimestamp(planned_s, UTC).isoformat(timespec="milliseconds")
    return {
        "batchId": batch,
        "timestamp": at.replace("+00:00", "Z"),
        "numInputRows": 3,
        "durationMs": {"addBatch": 275, "commitOffsets": 70, "triggerExecution": took_ms},
        "stateOperators": [],
        "sources": [
            {"endOffset": {"in": {"0": 5, "1": 7}}, "latestOffset": {"in": {"0": 9, "1": 7}}},
            {"endOffset": 7, "latestOffset": 7},
        ],
    }


class Scene:
    """One pipeline, from the store to the query, with Spark's part played."""

    def __init__(self, observer: Observer | None) -> None:
        self.broker = FakeBroker()
        self.sink = FakeSink(self.broker)
        self.store = observed_store(CheckpointStore(obstore.store.MemoryStore(), "ck"), observer)
        self.heartbeat = BeatLoop(
            self.store, application_id="app", trigger=timedelta(seconds=1), observer=observer
        )
        self.query = SimpleNamespace(lastProgress=None)
        self.heartbeat.follow(self.query)  # type: ignore[arg-type]
        if observer is not None:
            observer(Started())  # as the heartbeat does when it begins
        self.start(observer)

    def start(self, observer: Observer | None) -> None:
        """The driver, or the next one."""
        decisions = observed_decisions(self.store, observer)
        self.participant = FakeParticipant(self.broker)
        self.batch = GuardedBatch(
            ExactlyOnceBatch(
                self.sink,
                observed_participant(self.participant, observer),
                decisions,
                authority_of(self.store, decisions),
                rulings=lambda _unknown: {},
                driver="driver",
                on_phase=self.heartbeat.enter_phase,
            ),
            self.heartbeat,
        )

    def run(self, number: int, rows: FakeFrame = ROWS) -> None:
        """Spark plans a batch, calls for it, and commits it 70 ms after it returned."""
        planned_s = time.time() - 0.05
        self.batch(rows, number)  # type: ignore[arg-type]
        took_ms = int((time.time() - planned_s) * 1000) + 70
        said = spark_says(number, planned_s, took_ms)
        self.query.lastProgress = SimpleNamespace(json=json.dumps(said))
