"""A checkpoint folder, a Kafka that answers from memory, and a Spark that is a function."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_eos.core.checkpoint import (
    CheckpointStore,
    Heartbeat,
    Phase,
    StartedBy,
    claim,
    write_heartbeat,
)
from airflow_eos.core.checkpoint.heartbeat import STARTED_BY
from airflow_eos.operators import SparkStreamingOperator
from airflow_eos.recovery import Action, Plan, Report, Result, StepResult, read_rulings
from tests.support import beats
from tests.support.metadata import capable
from tests.support.pipelines import kafka_member, kafka_pipeline

PASSWORD = "hunter-two-and-a-half"
RESULTS = {
    Action.COMMIT: Result.DONE,
    Action.ABORT: Result.DONE,
    Action.REPLAY: Result.WAITS,
    Action.ASK: Result.NEEDS_PERSON,
    Action.ORPHAN: Result.NOT_ALLOWED,
}


def heartbeat(phase: Phase = "waiting", **other: Any) -> Heartbeat:
    now_ms = time.time_ns() // 1_000_000
    young = {"beat_at_ms": now_ms, "interval_ms": 30, "started_at_ms": now_ms}
    us = {"application_id": "local-1", "host": socket.gethostname()}
    return beats.heartbeat(phase, **{**young, **us, **other})


def started_by(fake: FakeSpark) -> StartedBy | None:
    """Who has started the app that runs last, as its environment says it."""
    return StartedBy.of_text(fake.popen[-1]["env"].get(STARTED_BY))


@pytest.fixture
def store(tmp_path) -> CheckpointStore:
    store = CheckpointStore.open(tmp_path / "checkpoint")
    claim(store, kafka_pipeline())
    return store


@pytest.fixture(autouse=True)
def connections(monkeypatch) -> None:
    kafka = {
        "bootstrap.servers": "kafka:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "etl",
        "sasl.password": PASSWORD,
    }
    monkeypatch.setenv(
        "AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": kafka})
    )
    monkeypatch.setenv(
        "AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"})
    )


class FakeWire:
    """A connection to a cluster that accepts 15 minutes."""

    def __init__(self) -> None:
        self.closed = False
        longest_ms = {"transaction.max.timeout.ms": "900000"}
        self.cluster = SimpleNamespace(capabilities=lambda: capable(settings=longest_ms))

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeKafka:
    """Answers ``make_plan`` with ``plans`` in turn (then with an empty one)."""

    location: str
    plans: list[Plan] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    wires: list[FakeWire] = field(default_factory=list)
    settings: list[Any] = field(default_factory=list)
    reached: int = 0
    opened: int = 0

    def empty(self, **other: Any) -> Plan:
        return Plan(
            **{
                "made_at_ms": 0,
                "location": self.location,
                "participants": (kafka_member(),),
                "batch_id": 7,
                "in_flight": None,
                "seal": None,
                "steps": (),
                "alive": (),
                "listed": (),
                **other,
            }
        )

    def wire(self, _settings: Any) -> Any:
        """What the look before a start opens."""
        self.opened += 1
        self.wires.append(FakeWire())
        return self.wires[-1]

    def participant_of(self, *asked: Any, reach: Any = None, **_: Any) -> Any:
        """Opens a connection, if it is not given one."""
        self.reached += 1
        self.settings += asked[1:2]
        wire = (reach or {}).get("kafka")
        if wire is None:
            self.opened += 1
        else:
            assert not wire.closed
        return SimpleNamespace(close=lambda: None)

    def make_plan(self, _facts: Any) -> Plan:
        self.calls.append("plan")
        return self.plans.pop(0) if self.plans else self.empty()

    def execute(self, plan: Plan, *_: Any, allow: Any, force: bool, **__: Any) -> Report:
        self.calls.append("force" if force else "execute")
        self.allowed = allow
        works = [step.work for step in plan.steps if step.work is not None]
        ruled = read_rulings(CheckpointStore.open(self.location), works) if works else {}
        left = [step for step in plan.steps if step.work not in ruled]
        return Report(
            location=plan.location,
            participants=plan.participants,
            executed_by="test",
            executed_at_ms=0,
            sealed=None,
            results=tuple(StepResult(step, RESULTS[step.action]) for step in left),
        )


@pytest.fixture
def kafka(store, monkeypatch) -> FakeKafka:
    fake = FakeKafka(store.location)
    for name, answer in {
        "participant_of": fake.participant_of,
        "gather": lambda *_, **__: None,
        "make_plan": fake.make_plan,
        "execute": fake.execute,
        "execute_recovery": fake.execute,
    }.items():
        monkeypatch.setattr(f"airflow_eos.ops.supervision.recovery.{name}", answer)
    monkeypatch.setattr("airflow_eos.kafka.client.connection.ConnectionPool", fake.wire)
    return fake


@dataclass
class FakeSpark:
    """Stands in for ``SparkSubmitHook``: each submit runs the next of ``runs``."""

    runs: list[Callable[[FakeSpark], None]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    constructed: list[dict[str, Any]] = field(default_factory=list)
    popen: list[dict[str, Any]] = field(default_factory=list)
    killed: bool = False

    def __call__(self, **arguments: Any) -> FakeSpark:
        self.constructed.append(arguments)
        return self

    def submit(self, application: str, **popen: Any) -> None:
        self.calls.append(f"submit {application}")
        self.popen.append(popen)
        self.runs.pop(0)(self)

    def on_kill(self) -> None:
        self.killed = True


@pytest.fixture
def spark(monkeypatch) -> FakeSpark:
    fake = FakeSpark()
    monkeypatch.setattr("airflow_eos.hooks.spark.SparkSubmitHook", fake)
    for name in (
        *("run._POLL_S", "run._POLL_S", "run._LOOK_S"),
        *("run.LOOK_S", "run.CHILD_LOOK_S", "run.LOOK_S", "run.CHILD_LOOK_S"),
    ):
        monkeypatch.setattr(f"airflow_eos.ops.supervision.{name}", 0.01)
    return fake


@pytest.fixture
def says(store) -> Callable[..., Callable[[FakeSpark], None]]:
    """An app that writes this heartbeat and exits with 0, or with ``error``."""

    def app(phase: Phase, error: Exception | None = None) -> Callable[[FakeSpark], None]:
        def run(fake: FakeSpark) -> None:
            write_heartbeat(store, heartbeat(phase, started_by=started_by(fake)))
            if error:
                raise error

        return run

    return app


@pytest.fixture
def operator(store, kafka, spark):
    def make(**arguments):
        return SparkStreamingOperator(
            **{
                "task_id": "etl",
                "application": "/apps/etl.py",
                "checkpoint_location": store.location,
                "ship_package": False,
                "restart_delay": timedelta(0),
                "patience": timedelta(minutes=5),
                "submit_timeout": timedelta(minutes=5),
                **arguments,
            }
        )

    return make
