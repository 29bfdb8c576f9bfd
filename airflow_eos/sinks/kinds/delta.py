"""``delta``: see ``DeltaSink``."""

from __future__ import annotations

from typing import Any

from airflow_eos.sinks.delta import DeltaSink
from airflow_eos.sinks.kinds.port import AppFacts, SinkOptions
from airflow_eos.sinks.lake import application_of


class DeltaOptions(SinkOptions, frozen=True):
    """A table of Delta."""

    table_uri: str
    application_id: str | None = None
    compression: str | None = None

    def sink(self, name: str, app: AppFacts, how: Any) -> DeltaSink:
        """See :meth:`SinkOptions.sink`."""
        del how
        return DeltaSink(name=name, **{**application_of(name, app), **self.given()})
