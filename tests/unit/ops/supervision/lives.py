"""Heartbeats, looks and runs, in short."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow_eos.core.checkpoint import CheckpointStore, DrainRequest, Heartbeat, Phase, StartedBy
from airflow_eos.core.delivery.policy import FixedDelay
from airflow_eos.ops.supervision.heartbeat_monitor import HeartbeatObservation
from airflow_eos.ops.supervision.rules import Rules
from airflow_eos.ops.supervision.run import StreamRun
from tests.support.beats import heartbeat

US = StartedBy(dag_id="d", task_id="t", run_id="r", map_index=-1, submission="")


def started(submission: str = "s1", **other: Any) -> StartedBy:
    told = {"dag_id": "d", "task_id": "t", "run_id": "r", "map_index": -1, **other}
    return StartedBy(**told, submission=submission)


def beat(phase: Phase = "waiting", **other: Any) -> Heartbeat:
    ours = {"term": 1, "started_by": started(), "host": "h", "pid": 7, "batch_id": 4}
    return heartbeat(phase, **{**ours, **other})


def seen(
    heartbeat: Heartbeat | None, *, moved: bool = True, silent_s: float = 0, **other
) -> HeartbeatObservation:
    term = other.pop("term", (heartbeat.term or 0) if heartbeat else 0)
    return HeartbeatObservation(heartbeat, term, moved=moved, silent_s=silent_s)


def drain(**named: Any) -> DrainRequest:
    return DrainRequest(requested_by="ops", reason="x", requested_at_ms=0, **named)


def run_of(store: CheckpointStore, clock: Any, submit: Any, **parts: Any) -> StreamRun:
    """A task's run by a clock of its own: nothing to recover, and no failure is let pass."""
    rules = Rules(FixedDelay(attempts=0), timedelta(seconds=30))
    given = {"recover": lambda: None, "rules": rules, "sleep": clock.sleep, "clock": clock}
    return StreamRun(store, US, submit=submit, **{**given, **parts})
