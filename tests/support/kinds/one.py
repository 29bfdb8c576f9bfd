"""Kinds with one output that are written to by their own clients: topics, files, SQL, tables."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.transactions.listing import list_open
from airflow_eos.kinds.files.names import beside
from airflow_eos.sinks import DeltaSink, FileSink, IcebergSink, KafkaSink, LakeUpsert, PostgresSink
from tests.support.kinds.lake_by_hand import delta_rows, iceberg_rows
from tests.support.kinds.place import Counted, Place, Rows, Rowwise, kept
from tests.support.topics import read_topic

TABLE = pa.schema([("key", pa.binary()), ("value", pa.binary())])
_COUNTS = pa.schema([("key", pa.binary()), ("value", pa.string())])


def decoded(table: pa.Table) -> Rows:
    """Rows as text, whether the columns are text or bytes."""
    columns = [table[name].cast(pa.binary()).to_pylist() for name in ("key", "value")]
    return Counter((key.decode(), value.decode()) for key, value in zip(*columns, strict=True))


class Kafka(Rowwise):
    servers = ("kafka",)

    def sink(self, at: Place) -> KafkaSink:
        minute = timedelta(minutes=1)
        return KafkaSink(
            bootstrap_servers=at.servers["kafka"],
            topic=f"{at.tag}-out",
            transactional_id_prefix=at.tag,
            transaction_timeout=minute,
            batch_within=minute / 4,
            recover_within=minute / 4,
        )

    def read(self, at: Place) -> dict[str, Rows]:
        return {"sink": Counter(read_topic(at.servers["kafka"], f"{at.tag}-out"))}

    def left(self, at: Place) -> int:
        with ConnectionPool(KafkaSettings.from_librdkafka(at.kafka or {})) as wire:
            return len(list_open(wire, at.tag))


class Files(Rowwise):
    name = "sink"

    def sink(self, at: Place) -> FileSink:
        return FileSink(str(at.out))

    def read(self, at: Place) -> dict[str, Rows]:
        found: Rows = Counter()
        for file in at.out.glob("*.parquet"):
            found += decoded(pq.ParquetFile(file).read())
        return {"sink": found}

    def left(self, at: Place) -> int:
        prepared = {
            file.name
            for file in (at.out.parent / beside(at.out.name) / self.name / "work").glob("*")
        }
        return len(prepared - {file.stem for file in at.out.glob("*.parquet")})


class Postgres(Rowwise):
    servers = ("postgres",)

    def __init__(self, *, two_phase: bool = True) -> None:
        self._two_phase = two_phase
        if not two_phase:
            self.own_places = ("moved@2",)
            self.own_tasks = ("task-kept@2",)

    def create(self, at: Place) -> None:
        with psycopg.connect(at.servers["postgres"], autocommit=True) as connection:
            connection.execute(f"CREATE TABLE {at.tag} (key bytea, value bytea)")

    def sink(self, at: Place) -> PostgresSink:
        return PostgresSink(
            at.servers["postgres"], table=at.tag, gid_prefix=at.tag, two_phase=self._two_phase
        )

    def reach(self, at: Place) -> dict[str, Any]:
        return {"postgres": at.servers["postgres"]}

    def read(self, at: Place) -> dict[str, Rows]:
        with psycopg.connect(at.servers["postgres"]) as connection:
            found = connection.execute(f"SELECT key, value FROM {at.tag}").fetchall()
        return {"sink": Counter((key.decode(), value.decode()) for key, value in found)}

    def left(self, at: Place) -> int:
        return waiting_in_postgres(at)


def waiting_in_postgres(at: Place) -> int:
    """Prepared transactions of this pipeline, and rows that wait in its checkpoint."""
    with psycopg.connect(at.servers["postgres"]) as connection:
        row = connection.execute(
            f"SELECT count(*) FROM pg_prepared_xacts WHERE gid LIKE '{at.tag}.%'"
        ).fetchone()
    return sum(row or ()) + kept(at)


def noted(at: Place) -> int:
    """Files of a table that the checkpoint still has notes of."""
    folder = Path(at.folder, "checkpoint", "eos", "works")
    return sum(1 for note in folder.rglob("*") if note.is_file())


class Delta(Rowwise):
    own_places = ("looked@2",)
    own_tasks = ("task-noted@2", "task-filed@2")

    def create(self, at: Place) -> None:
        from deltalake import DeltaTable

        DeltaTable.create(str(at.out), schema=TABLE)

    def sink(self, at: Place) -> DeltaSink:
        return DeltaSink(str(at.out), application_id=at.tag)

    def read(self, at: Place) -> dict[str, Rows]:
        return {"sink": decoded(delta_rows(at.out))}

    def left(self, at: Place) -> int:
        return noted(at)

    def data(self, at: Place) -> Path:
        return at.out


class DeltaUpserts(Counted):
    """The newest count of each key, in a table that is read by hand."""

    own_places = ("looked@2", "rewritten@2")
    own_tasks = Delta.own_tasks

    def create(self, at: Place) -> None:
        from deltalake import DeltaTable

        DeltaTable.create(str(at.out), schema=_COUNTS)

    def sink(self, at: Place) -> DeltaSink:
        return DeltaSink(str(at.out), application_id=at.tag, upsert=LakeUpsert(["key"]))

    def read(self, at: Place) -> dict[str, Rows]:
        return {"sink": decoded(delta_rows(at.out))}

    def left(self, at: Place) -> int:
        return noted(at) + sum(1 for _ in (at.out / "_eos").rglob("*.parquet"))


class Iceberg(Rowwise):
    own_places = Delta.own_places
    own_tasks = Delta.own_tasks

    def create(self, at: Place, schema: pa.Schema = TABLE) -> None:
        with closing(self._catalog(at)) as catalog:
            catalog.create_namespace("db")
            catalog.create_table("db.rows", schema=schema, location=f"file://{at.out}")

    def sink(self, at: Place) -> IcebergSink:
        return IcebergSink("db.rows", self._properties(at), application_id=at.tag)

    def reach(self, at: Place) -> dict[str, Any]:
        return {"iceberg": self._properties(at)}

    def read(self, at: Place) -> dict[str, Rows]:
        return {"sink": decoded(iceberg_rows(Path(at.folder, "catalog.db"), "rows"))}

    def left(self, at: Place) -> int:
        return noted(at)

    def data(self, at: Place) -> Path:
        return at.out / "data"

    def _properties(self, at: Place) -> dict[str, str]:
        return {
            "type": "sql",
            "uri": f"sqlite:///{at.folder}/catalog.db",
            "warehouse": f"file://{at.folder}",
        }

    def _catalog(self, at: Place) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog("default", **self._properties(at))


class IcebergUpserts(Counted):
    """As of Delta."""

    own_places = DeltaUpserts.own_places
    own_tasks = Delta.own_tasks

    def __init__(self) -> None:
        self._appended = Iceberg()

    def create(self, at: Place) -> None:
        self._appended.create(at, _COUNTS)

    def sink(self, at: Place) -> IcebergSink:
        return replace(self._appended.sink(at), upsert=LakeUpsert(["key"]))

    def reach(self, at: Place) -> dict[str, Any]:
        return self._appended.reach(at)

    def read(self, at: Place) -> dict[str, Rows]:
        return self._appended.read(at)

    def left(self, at: Place) -> int:
        return noted(at) + sum(1 for _ in (at.out / "data" / "_eos").rglob("*.parquet"))
