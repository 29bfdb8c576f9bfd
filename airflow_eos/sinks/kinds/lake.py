"""``delta`` and ``iceberg``: see ``DeltaSink`` and ``IcebergSink``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_eos.sinks.delta import DeltaSink
from airflow_eos.sinks.iceberg import IcebergSink
from airflow_eos.sinks.kinds.port import AppFacts, SinkOptions, unreached


class DeltaOptions(SinkOptions, frozen=True):
    """A table of Delta."""

    table_uri: str
    application_id: str | None = None
    compression: str | None = None

    def sink(self, name: str, app: AppFacts, how: Any) -> DeltaSink:
        """See :meth:`SinkOptions.sink`."""
        del how
        return DeltaSink(name=name, **{**_application(name, app), **self.given()})


class IcebergOptions(SinkOptions, frozen=True):
    """A table of Iceberg; its catalog's properties come with ``how``."""

    identifier: str
    application_id: str | None = None
    catalog_name: str | None = None
    compression: str | None = None

    def sink(self, name: str, app: AppFacts, how: Any) -> IcebergSink:
        """See :meth:`SinkOptions.sink`."""
        if not isinstance(how, Mapping) or not how:
            raise unreached("the catalog's properties, as pyiceberg's load_catalog takes them")
        given = {**_application(name, app), **self.given()}
        return IcebergSink(catalog=how, name=name, **given)


def _application(name: str, app: AppFacts) -> dict[str, str]:
    """Under which a table knows the output, where no other name is given."""
    return {"application_id": f"{app.prefix}-{name}"}
