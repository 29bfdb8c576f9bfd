"""Settled batches as events: the public door to :mod:`airflow_eos.ops.settled`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_eos.ops.settled import *  # noqa: F403 - what its ``__all__`` names


def __getattr__(name: str) -> Any:
    """Import on first use: DAG files import this door."""
    from airflow_eos.ops import settled

    if name not in {"__all__", *settled.__all__}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(settled, name)
