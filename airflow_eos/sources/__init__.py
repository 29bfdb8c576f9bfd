"""Sources that never give a row to the JVM: Spark plans which offsets, tasks fetch them in Arrow.

Read ``kafka.py`` first (what a user gives), then ``stream.py`` (what Spark is told), ``task.py``
(what a task does).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_eos.sources.kafka import ArrowKafkaSource

__all__ = ["ArrowKafkaSource"]


def __getattr__(name: str) -> Any:
    """Import on first use: a worker needs the tasks' modules only."""
    if name != "ArrowKafkaSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from airflow_eos.sources.kafka import ArrowKafkaSource

    return ArrowKafkaSource
