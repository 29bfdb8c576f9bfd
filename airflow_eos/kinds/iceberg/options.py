"""``iceberg``: see ``IcebergSink``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_eos.delivery.options import AppFacts, SinkOptions, unreached
from airflow_eos.kinds.iceberg.sink import IcebergSink
from airflow_eos.kinds.lake.task import application_of


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
        given = {**application_of(name, app), **self.given()}
        return IcebergSink(catalog=how, name=name, **given)


OPTIONS = IcebergOptions
