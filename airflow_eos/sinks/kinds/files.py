"""``files``: see :class:`~airflow_eos.sinks.files.FileSink`."""

from __future__ import annotations

from typing import Any

from airflow_eos.sinks.files import FileSink
from airflow_eos.sinks.kinds.port import AppFacts, SinkOptions


class FileOptions(SinkOptions, frozen=True):
    """A folder of Parquet files."""

    folder: str
    compression: str | None = None

    def sink(self, name: str, app: AppFacts, how: Any) -> FileSink:
        """See :meth:`SinkOptions.sink`."""
        del app, how
        return FileSink(name=name, **self.given())
