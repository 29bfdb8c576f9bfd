"""``delta``: see ``DeltaSink``."""

from __future__ import annotations

from typing import Any

from airflow_eos.delivery.options import AppFacts, SinkOptions
from airflow_eos.kinds.delta.sink import DeltaSink
from airflow_eos.kinds.lake.task import application_of


class DeltaOptions(SinkOptions, frozen=True):
    """A table of Delta."""

    table_uri: str
    application_id: str | None = None
    compression: str | None = None

    def sink(self, name: str, app: AppFacts, how: Any) -> DeltaSink:
        """See :meth:`SinkOptions.sink`."""
        del how
        return DeltaSink(name=name, **{**application_of(name, app), **self.given()})


OPTIONS = DeltaOptions
