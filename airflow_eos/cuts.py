"""A cut across the outputs of a pipeline: the public door to :mod:`airflow_eos.ops.cuts`.

``cuts.latest(checkpoint)`` gives the newest one; see docs/cuts.md. Neither Spark nor Airflow is
needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_eos.ops.cuts import *  # noqa: F403 - what its ``__all__`` names


def __getattr__(name: str) -> Any:
    """Import on first use: DAG files import this door."""
    from airflow_eos.ops import cuts

    if name not in {"__all__", *cuts.__all__}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(cuts, name)
