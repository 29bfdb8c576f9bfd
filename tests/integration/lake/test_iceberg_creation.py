"""A table that is not there, a namespace within others, and a catalog's secrets."""

from __future__ import annotations

import pickle
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.errors import ConfigurationError, StoreError
from airflow_eos.kinds.iceberg.creation import part
from airflow_eos.kinds.iceberg.participant import reached
from airflow_eos.kinds.iceberg.sink import IcebergSink
from airflow_eos.sinks import NewTable
from tests.integration.lake.kinds import Iceberg
from tests.integration.lake.stage import Stage
from tests.integration.lake.test_iceberg_partitions import delivered

NEW = NewTable(
    "id BIGINT NOT NULL, at TIMESTAMP, region STRING",
    ("day(at)", "bucket(4, id)", "region"),
    {"write.parquet.compression-codec": "zstd", "owner": "shop"},
)
ROW = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("at", pa.timestamp("us", "UTC")),
        ("region", pa.string()),
    ]
)
GIVEN = pa.RecordBatch.from_pylist([{"id": 1, "at": None, "region": "eu"}], schema=ROW)


class Absent(Iceberg):
    """There is no table yet."""

    def identifier(self, folder: Path) -> str:
        del folder
        return "shop.orders"

    def sink(self, folder: Path) -> IcebergSink:
        how = self.properties(folder)
        return IcebergSink(self.identifier(folder), how, application_id="etl", create=NEW)


@pytest.fixture
def stage(tmp_path: Path, spark: SparkSession) -> Stage:
    del spark  # which reads the columns
    return Stage(Absent(), tmp_path)


def table_of(stage: Stage) -> Any:
    kind = stage.kind
    assert isinstance(kind, Absent)
    with closing(kind.catalog(stage.table)) as catalog:
        return catalog.load_table(kind.identifier(stage.table))


def test_a_table_that_is_not_there_is_made_with_partitions_and_properties(stage: Stage):
    stage.claimed()
    table = table_of(stage)
    assert [(str(f.field_type), f.required) for f in table.schema().fields] == [
        ("long", True),
        ("timestamptz", False),
        ("string", False),
    ]
    parts = [
        (table.schema().find_column_name(f.source_id), str(f.transform))
        for f in table.spec().fields
    ]
    assert parts == [("at", "day"), ("id", "bucket[4]"), ("region", "identity")]
    assert NEW.properties.items() <= table.properties.items()
    delivered(stage, GIVEN)
    assert table_of(stage).scan().to_arrow()["id"].to_pylist() == [1]


def test_a_table_that_is_there_stays_as_it_is(stage: Stage):
    stage.claimed()
    first = table_of(stage)
    other = IcebergSink(
        "shop.orders",
        Absent().properties(stage.table),
        application_id="etl",
        create=NewTable("other STRING"),
    )
    other.bound(stage.store)
    assert table_of(stage).metadata == first.metadata


def test_of_two_that_make_it_at_once_one_does(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(SqlCatalog, "table_exists", lambda *_: False)
    stage.claimed()
    first = table_of(stage)
    assert stage.sink.metadata.table_uuid == first.metadata.table_uuid


@pytest.mark.parametrize("text", ["zorder(at)", "bucket(at)", "truncate(region)", "f(3, at)"])
def test_partitions_that_iceberg_does_not_have_are_refused(text: str):
    with pytest.raises(ConfigurationError, match="expected a column, or year"):
        part(text)


def test_a_column_that_is_not_there_is_said_before_anything_is_made(stage: Stage):
    sink = IcebergSink(
        "shop.orders",
        Absent().properties(stage.table),
        application_id="etl",
        create=NewTable("id BIGINT", ("day(at)",)),
    )
    with pytest.raises(ConfigurationError, match="cannot be made of columns id BIGINT"):
        sink.bound(stage.store)
    without = IcebergSink("shop.orders", Absent().properties(stage.table), application_id="e")
    with pytest.raises(StoreError, match="no Iceberg table"):
        without.bound(stage.store)


def test_a_namespace_may_be_within_others(tmp_path: Path):
    kind, name = Iceberg(), "lake.shop.eu.orders"
    stage = Stage(kind, tmp_path)
    with closing(kind.catalog(stage.table)) as catalog:
        catalog.create_namespace("lake.shop.eu")
        catalog.create_table(name, ROW, kind.uri(stage.table))
    sink = IcebergSink(name, kind.properties(stage.table), application_id="etl").bound(stage.store)
    writer = sink.opened(0, 0, transactional=False)
    writer.write(GIVEN)
    writer.prepare("0" * 32)
    with closing(kind.catalog(stage.table)) as catalog:
        assert catalog.load_table(name).scan().to_arrow()["id"].to_pylist() == [1]


SECRETS = {
    "credential": "id:geheim",
    "token": "geheim",
    "s3.secret-access-key": "geheim",
    "s3.session-token": "geheim",
    "header.Authorization": "Basic geheim",
}


def test_a_catalogs_properties_reach_it_and_show_nowhere(tmp_path: Path, monkeypatch):
    """OAuth2 and SigV4 are pyiceberg's own, by its own names."""
    import pyiceberg.catalog as catalogs

    given: list[dict[str, str]] = []

    def load(_name: str, **properties: str) -> Any:
        given.append(properties)
        raise OSError("401: geheim was refused")

    monkeypatch.setattr(catalogs, "load_catalog", load)
    properties = {
        "type": "rest",
        "uri": "http://127.0.0.1:1",
        "rest.sigv4-enabled": "true",
        "rest.signing-region": "eu-1",
        "scope": "PRINCIPAL_ROLE:ALL",
        **SECRETS,
    }
    sink = IcebergSink("a.b", properties, application_id="etl")
    with pytest.raises(StoreError) as told:
        sink.bound(CheckpointStore.open(tmp_path))
    assert given == [properties]
    with pytest.raises(StoreError) as again:
        reached("default", properties)
    for shown in (repr(sink), str(sink), str(told.value), str(again.value)):
        assert "geheim" not in shown
    assert told.value.__cause__ is None
    assert pickle.loads(pickle.dumps(sink)) == sink


def test_a_members_address_has_no_property_of_the_catalog(stage: Stage):
    stage.claimed()
    work = delivered(stage, GIVEN)
    for each in (stage.folder / "checkpoint").rglob("*"):
        if each.is_file():
            assert b"sqlite" not in each.read_bytes()
    assert stage.participant().outcome([work]) == {work.identity: Outcome.COMMITTED}
