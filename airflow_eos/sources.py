"""Sources whose rows never reach the JVM: Spark plans the offsets, tasks fetch them in Arrow.

Read ``kafka.py`` first (the source as a user gives it), then ``stream.py`` (its planning for
Spark), ``task.py`` (its tasks).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_eos.arrow.source.kafka import ArrowKafkaSource

__all__ = ["ArrowKafkaSource"]


def __getattr__(name: str) -> Any:
    """Import on first use: a worker needs the tasks' modules only."""
    if name != "ArrowKafkaSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from airflow_eos.arrow.source.kafka import ArrowKafkaSource

    return ArrowKafkaSource
