"""Delta and Iceberg, each as the tests make and read its tables."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_eos.kinds.delta.sink import DeltaSink
from airflow_eos.kinds.iceberg.sink import IcebergSink
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

    def clear(self, folder: Path) -> None:
        from deltalake import DeltaTable

        DeltaTable(folder).delete()

    def add_columns(self, folder: Path) -> None:
        from deltalake import DeltaTable, Field, Schema
        from deltalake.schema import PrimitiveType

        DeltaTable(folder).alter.add_columns([Field("later", PrimitiveType("string"))])
        assert len(Schema.from_arrow(self.rows(folder).schema).fields) == 3


class Iceberg:
    name = "iceberg"

    def create(self, folder: Path, schema: pa.Schema = SCHEMA) -> None:
        with closing(self.catalog(folder)) as catalog:
            catalog.create_namespace("db")
            catalog.create_table("db.rows", schema=schema, location=f"file://{folder}")

    def sink(self, folder: Path) -> IcebergSink:
        return IcebergSink("db.rows", self.properties(folder), application_id="etl")

    def reach(self, folder: Path) -> dict[str, Any]:
        return {"iceberg": self.properties(folder)}

    def rows(self, folder: Path) -> pa.Table:
        with closing(self.catalog(folder)) as catalog:
            return catalog.load_table("db.rows").scan().to_arrow()

    def commits(self, folder: Path) -> int:
        with closing(self.catalog(folder)) as catalog:
            return len(catalog.load_table("db.rows").snapshots())

    def files(self, folder: Path) -> Path:
        return folder / "data"

    def clear(self, folder: Path) -> None:
        with closing(self.catalog(folder)) as catalog:
            catalog.load_table("db.rows").delete()

    def add_columns(self, folder: Path) -> None:
        from pyiceberg.types import StringType

        with (
            closing(self.catalog(folder)) as catalog,
            catalog.load_table("db.rows").update_schema() as change,
        ):
            change.add_column("later", StringType())

    def properties(self, folder: Path) -> dict[str, str]:
        return {
            "type": "sql",
            "uri": f"sqlite:///{folder.parent}/catalog.db",
            "warehouse": f"file://{folder.parent}",
        }

    def catalog(self, folder: Path) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog("default", **self.properties(folder))


ICEBERG = Iceberg()
KINDS: dict[str, Kind] = {"delta": Delta(), "iceberg": ICEBERG}
