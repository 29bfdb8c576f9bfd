"""``files``: see :class:`~airflow_eos.sinks.files.FileSink`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_eos.delivery.options import AppFacts, SinkOptions
from airflow_eos.kinds.files.sink import FileSink


class FileOptions(SinkOptions, frozen=True):
    """A folder of files, or a bucket, which is reached by ``{"storage_options": {…}}``."""

    folder: str
    format: str | None = None
    partition_by: tuple[str, ...] | None = None
    compression: str | None = None
    publish: str | None = None

    def sink(self, name: str, app: AppFacts, how: Any) -> FileSink:
        """See :meth:`SinkOptions.sink`."""
        del app
        options = how.get("storage_options", {}) if isinstance(how, Mapping) else {}
        return FileSink(name=name, storage_options=options, **self.given())


OPTIONS = FileOptions
