"""Delta and Iceberg, each as the tests make and read its tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_eos.sinks.delta import DeltaSink
from tests.integration.lake.stage import SCHEMA, Kind


class Delta:
    name = "delta"

    def create(self, folder: Path, schema: pa.Schema = SCHEMA) -> None:
        from deltalake import DeltaTable

        DeltaTable.create(str(folder), schema=schema)

    def sink(self, folder: Path) -> DeltaSink:
        return DeltaSink(str(folder), application_id="etl")

    def reach(self, _folder: Path) -> dict[str, Any]:
        return {}

    def rows(self, folder: Path) -> pa.Table:
        from deltalake import DeltaTable

        return DeltaTable(folder).to_pyarrow_table()

    def commits(self, folder: Path) -> int:
        from deltalake import DeltaTable

        return DeltaTable(folder).version()

    def files(self, folder: Path) -> Path:
        return folder

    def add_columns(self, folder: Path) -> None:
        from deltalake import DeltaTable, Field, Schema

        DeltaTable(folder).alter.add_columns([Field("later", "string")])
        assert len(Schema.from_arrow(self.rows(folder).schema).fields) == 3


KINDS: dict[str, Kind] = {each.name: each for each in (Delta(),)}
