"""Delta and Iceberg, on a disk and in a bucket, each as the tests make and read its tables."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_eos.kinds.delta.sink import DeltaSink
from airflow_eos.kinds.iceberg.sink import IcebergSink
from airflow_eos.kinds.lake.upsert import LakeUpsert
from tests.integration.lake.stage import SCHEMA, Kind
from tests.support.kinds.lake_by_hand import S3, delta_rows, iceberg_rows


class Delta:
    name = "delta"

    def create(self, folder: Path, schema: pa.Schema = SCHEMA) -> None:
        from deltalake import DeltaTable

        DeltaTable.create(self.uri(folder), schema=schema, storage_options=self.options)

    def table(self, folder: Path) -> Path:
        return folder / "table"

    options: dict[str, str] | None = None

    def uri(self, folder: Path) -> str:
        return str(folder)

    def at(self, folder: Path) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(self.uri(folder), storage_options=self.options)

    def sink(self, folder: Path) -> DeltaSink:
        return DeltaSink(self.uri(folder), application_id="etl", storage_options=self.options)

    def reach(self, _folder: Path) -> dict[str, Any]:
        return {} if self.options is None else {"delta": self.options}

    def rows(self, folder: Path) -> pa.Table:
        return self.at(folder).to_pyarrow_table()

    def by_hand(self, folder: Path) -> pa.Table:
        return delta_rows(folder)

    def commits(self, folder: Path) -> int:
        return int(self.at(folder).version())

    def files(self, folder: Path) -> Path:
        return folder

    def clear(self, folder: Path) -> None:
        self.at(folder).delete()

    def add_columns(self, folder: Path) -> None:
        from deltalake import Field, Schema
        from deltalake.schema import PrimitiveType

        self.at(folder).alter.add_columns([Field("later", PrimitiveType("string"))])
        assert len(Schema.from_arrow(self.rows(folder).schema).fields) == 3


class DeltaUpsert(Delta):
    """The same rows by their key, which is new in each: what waits is beside the table's files."""

    name = "delta-upsert"

    def sink(self, folder: Path) -> DeltaSink:
        return replace(super().sink(folder), upsert=LakeUpsert(["key"]))

    def files(self, folder: Path) -> Path:
        return folder / "_eos" / "etl" / "rows"


class Iceberg:
    name = "iceberg"

    def create(self, folder: Path, schema: pa.Schema = SCHEMA) -> None:
        with closing(self.catalog(folder)) as catalog:
            catalog.create_namespace_if_not_exists("db")
            catalog.create_table(self.identifier(folder), schema=schema, location=self.uri(folder))

    def table(self, folder: Path) -> Path:
        return folder / "table"

    def uri(self, folder: Path) -> str:
        return f"file://{folder}"

    def identifier(self, folder: Path) -> str:
        del folder  # each has a catalog of its own
        return "db.rows"

    def sink(self, folder: Path) -> IcebergSink:
        return IcebergSink(self.identifier(folder), self.properties(folder), application_id="etl")

    def reach(self, folder: Path) -> dict[str, Any]:
        return {"iceberg": self.properties(folder)}

    def rows(self, folder: Path) -> pa.Table:
        with closing(self.catalog(folder)) as catalog:
            return catalog.load_table(self.identifier(folder)).scan().to_arrow()

    def by_hand(self, folder: Path) -> pa.Table:
        name = self.identifier(folder).partition(".")[2]
        return iceberg_rows(self.database(folder), name)

    def commits(self, folder: Path) -> int:
        with closing(self.catalog(folder)) as catalog:
            return len(catalog.load_table(self.identifier(folder)).snapshots())

    def files(self, folder: Path) -> Path:
        return folder / "data"

    def clear(self, folder: Path) -> None:
        with closing(self.catalog(folder)) as catalog:
            catalog.load_table(self.identifier(folder)).delete()

    def add_columns(self, folder: Path) -> None:
        from pyiceberg.types import StringType

        with (
            closing(self.catalog(folder)) as catalog,
            catalog.load_table(self.identifier(folder)).update_schema() as change,
        ):
            change.add_column("later", StringType())

    def database(self, folder: Path) -> Path:
        return folder.parent / "catalog.db"

    def properties(self, folder: Path) -> dict[str, str]:
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.database(folder)}",
            "warehouse": f"file://{folder.parent}",
        }

    def catalog(self, folder: Path) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog("default", **self.properties(folder))


class IcebergParted(Iceberg):
    """By two fields, so that most work has several files."""

    name = "iceberg-parted"

    def create(self, folder: Path, schema: pa.Schema = SCHEMA) -> None:
        super().create(folder, schema)
        with closing(self.catalog(folder)) as catalog:
            table = catalog.load_table(self.identifier(folder))
            with table.update_spec() as spec:
                spec.add_field("value", "bucket[4]").add_field("key", "truncate[1]")


class IcebergUpsert(Iceberg):
    """As of Delta."""

    name = "iceberg-upsert"

    def sink(self, folder: Path) -> IcebergSink:
        return replace(super().sink(folder), upsert=LakeUpsert(["key"]))

    def files(self, folder: Path) -> Path:
        return folder / "data" / "_eos" / "etl" / "rows"


class _InBucket:
    """A table whose objects the server keeps as files, which the tests look at."""

    @property
    def server(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(os.environ[S3])
        return found

    def table(self, folder: Path) -> Path:
        return Path(self.server["data"]) / folder.name / "table"

    def uri(self, folder: Path) -> str:
        return f"{self.server['url']}/{folder.relative_to(self.server['data'])}"


class DeltaInBucket(_InBucket, Delta):
    name = "delta-s3"

    @property
    def options(self) -> dict[str, str]:  # type: ignore[override]
        found: dict[str, str] = self.server["options"]
        return found


class DeltaUpsertInBucket(DeltaInBucket, DeltaUpsert):
    name = "delta-upsert-s3"


class IcebergInBucket(_InBucket, Iceberg):
    name = "iceberg-s3"

    def database(self, folder: Path) -> Path:
        return Path(f"{self.server['data']}-{folder.parent.name}.db")

    def properties(self, folder: Path) -> dict[str, str]:
        options = self.server["options"]
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.database(folder)}",
            "warehouse": self.server["url"],
            "s3.endpoint": options["aws_endpoint"],
            "s3.access-key-id": options["aws_access_key_id"],
            "s3.secret-access-key": options["aws_secret_access_key"],
            "s3.region": options["aws_region"],
        }


class IcebergByRest(IcebergInBucket):
    """One catalog server for all tests, which hands out the keys of the bucket."""

    name = "iceberg-rest-s3"

    def identifier(self, folder: Path) -> str:
        return f"db.{folder.parent.name}"

    def database(self, folder: Path) -> Path:
        del folder
        return Path(self.server["catalog"]["database"])

    def properties(self, folder: Path) -> dict[str, str]:
        del folder
        return by_rest(self.server["catalog"]["uri"], self.server["options"])


class IcebergUpsertByRest(IcebergByRest, IcebergUpsert):
    name = "iceberg-upsert-rest-s3"


def by_rest(uri: str, options: Mapping[str, str]) -> dict[str, str]:
    """How a client reaches a REST catalog and its bucket, without the bucket's keys."""
    return {
        "type": "rest",
        "uri": uri,
        "s3.endpoint": options["aws_endpoint"],
        "s3.region": options["aws_region"],
    }


ICEBERG = Iceberg()
KINDS: dict[str, Kind] = {
    "delta": Delta(),
    "delta-upsert": DeltaUpsert(),
    "iceberg": ICEBERG,
    "iceberg-parted": IcebergParted(),
    "iceberg-upsert": IcebergUpsert(),
    "delta-s3": DeltaInBucket(),
    "delta-upsert-s3": DeltaUpsertInBucket(),
    "iceberg-s3": IcebergInBucket(),
    "iceberg-rest-s3": IcebergByRest(),
    "iceberg-upsert-rest-s3": IcebergUpsertByRest(),
}
