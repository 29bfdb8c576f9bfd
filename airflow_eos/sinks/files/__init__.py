"""The files sink: a task writes data files, which the decision makes visible."""

from __future__ import annotations

from airflow_eos.sinks.files.sink import FileSink

__all__ = ["FileSink"]
