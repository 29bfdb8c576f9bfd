"""What runs inside Spark: sinks, and the query that drives the protocol.

Read ``query.py`` first (a batch on the driver), then ``task.py`` (its tasks).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_eos.sinks.files import FileSink
    from airflow_eos.sinks.kafka.sink import KafkaSink
    from airflow_eos.sinks.outputs import Output
    from airflow_eos.sinks.start import start_exactly_once

__all__ = ["FileSink", "KafkaSink", "Output", "start_exactly_once"]

_HOMES = {
    "FileSink": "files",
    "KafkaSink": "kafka.sink",
    "Output": "outputs",
    "start_exactly_once": "start",
}


def __getattr__(name: str) -> Any:
    """Import on first use: an executor needs the tasks' module only, not the driver's."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
