"""A cut across the outputs of a pipeline: the public door to :mod:`airflow_eos.ops.cuts`.

``cuts.latest(checkpoint)`` gives the newest one; see docs/cuts.md. Neither Spark nor Airflow is
needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_eos.ops.cuts import CommonCut as CommonCut
    from airflow_eos.ops.cuts import Cut as Cut
    from airflow_eos.ops.cuts import Position as Position
    from airflow_eos.ops.cuts import as_of as as_of
    from airflow_eos.ops.cuts import at as at
    from airflow_eos.ops.cuts import condition as condition
    from airflow_eos.ops.cuts import cut_of as cut_of
    from airflow_eos.ops.cuts import dataset as dataset
    from airflow_eos.ops.cuts import files as files
    from airflow_eos.ops.cuts import from_event as from_event
    from airflow_eos.ops.cuts import latest as latest
    from airflow_eos.ops.cuts import offsets as offsets
    from airflow_eos.ops.cuts import rows as rows
    from airflow_eos.ops.cuts import spark_frame as spark_frame

__all__ = [
    "CommonCut",
    "Cut",
    "Position",
    "as_of",
    "at",
    "condition",
    "cut_of",
    "dataset",
    "files",
    "from_event",
    "latest",
    "offsets",
    "rows",
    "spark_frame",
]


def __getattr__(name: str) -> Any:
    """Import on first use: DAG files import this door."""
    from airflow_eos.ops import cuts

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(cuts, name)
