"""A heartbeat, of which a test says what it is about."""

from __future__ import annotations

from typing import Any

from airflow_eos.checkpoint import Heartbeat
from airflow_eos.checkpoint.liveness import Phase


def heartbeat(phase: Phase = "waiting", **said: Any) -> Heartbeat:
    """The beat of a driver ``app-1`` in batch 7; its times are 0 where nothing else is said."""
    of_a_driver = {
        "application_id": "app-1",
        "host": "node-1",
        "pid": 1,
        "batch_id": 7,
        "beat_at_ms": 0,
        "interval_ms": 2000,
        "trigger_ms": 1000,
        "started_at_ms": 0,
    }
    return Heartbeat(phase=phase, **{**of_a_driver, **said})
