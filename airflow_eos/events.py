"""Settled batches as events: the public door to :mod:`airflow_eos.ops.settled`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_eos.ops.settled import Settled as Settled
    from airflow_eos.ops.settled import SettledBatch as SettledBatch
    from airflow_eos.ops.settled import SettledEvent as SettledEvent
    from airflow_eos.ops.settled import behind as behind
    from airflow_eos.ops.settled import crosses as crosses
    from airflow_eos.ops.settled import events_since as events_since
    from airflow_eos.ops.settled import hours_completed as hours_completed
    from airflow_eos.ops.settled import newest_of as newest_of
    from airflow_eos.ops.settled import newest_settled as newest_settled
    from airflow_eos.ops.settled import pipeline_of as pipeline_of
    from airflow_eos.ops.settled import read_settled as read_settled

__all__ = [
    "Settled",
    "SettledBatch",
    "SettledEvent",
    "behind",
    "crosses",
    "events_since",
    "hours_completed",
    "newest_of",
    "newest_settled",
    "pipeline_of",
    "read_settled",
]


def __getattr__(name: str) -> Any:
    """Import on first use: DAG files import this door."""
    from airflow_eos.ops import settled

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(settled, name)
