"""Tables where they live: one on each store that a kind's library can reach, or a refusal."""

from __future__ import annotations

import json
import os
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.participants import connect
from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.errors import ConfigurationError
from airflow_eos.kinds.delta.participant import DeltaFolder
from airflow_eos.kinds.iceberg.participant import reached
from airflow_eos.local.s3 import local_s3
from airflow_eos.sinks import DeltaSink, IcebergSink
from tests.integration.lake.stage import SCHEMA, Stage
from tests.support.stores import THEIRS, Where, place

STORES = [pytest.param(kind, marks=pytest.mark.cluster) for kind in ("azurite", "hdfs", *THEIRS)]


@pytest.fixture(scope="module", params=STORES)
def where(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Where]:
    with place(request.param, tmp_path_factory.mktemp("store")) as opened:
        yield opened


class _Delta:
    """A Delta table on a store, as :class:`Stage` has its kinds."""

    def __init__(self, where: Where) -> None:
        self._where = where
        self._uri = f"{where.url}/{uuid.uuid4().hex}"

    def table(self, folder: Path) -> Path:
        return folder

    def sink(self, _folder: Path) -> DeltaSink:
        return DeltaSink(self._uri, application_id="etl", storage_options=self._where.options)

    def create(self, folder: Path) -> None:
        options = self.sink(folder).folder.options
        DeltaTable.create(self._uri, SCHEMA, partition_by=["key"], storage_options=options)

    def reach(self) -> dict[str, Any]:
        return {"delta": self._where.options}

    def rows(self, folder: Path) -> Any:
        return DeltaTable(self._uri, storage_options=self.sink(folder).folder.options)


class _Iceberg(_Delta):
    """As pyiceberg reaches the store: by properties of its own."""

    name = "db.t"

    def properties(self, folder: Path) -> dict[str, str]:
        catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}
        if (options := self._where.options).get("azure_endpoint") is None:
            scheme = self._uri.partition("://")[0].upper()
            told = json.loads(os.environ.get(f"EOS_TEST_{scheme}_PYICEBERG", "{}"))
            return {**catalog, "warehouse": self._uri, **told}
        authority = options["azure_endpoint"].split("/")[2]
        account = options["azure_storage_account_name"]
        return {
            **catalog,
            "warehouse": self._uri.replace("az://bucket", "abfs://bucket"),
            "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
            "adls.account-name": account,
            "adls.account-key": options["azure_storage_account_key"],
            "adls.blob-storage-authority": authority,
            "adls.blob-storage-scheme": "http",
            "adls.dfs-storage-authority": authority,
            "adls.dfs-storage-scheme": "http",
            "s3.access-key-id": "of another store of this catalog",
        }

    def sink(self, folder: Path) -> Any:
        return IcebergSink(self.name, catalog=self.properties(folder), application_id="etl")

    def create(self, folder: Path) -> None:
        with closing(reached("default", self.properties(folder))) as catalog:
            catalog.create_namespace("db")
            with catalog.create_table(self.name, SCHEMA).update_spec() as spec:
                spec.add_field("key", "identity")


def delivered(kind: Any, folder: Path) -> None:
    """Two batches, of which a driver commits one and a recovery the other, and an abort."""
    kind.create(folder)
    stage = Stage(kind, folder).claimed()
    first, second, third = (stage.prepare(*values) for values in ((1, 2), (3,), (4,)))
    stage.decide(first)
    commit = stage.participant().commit
    assert commit([first]) == commit([first]) == {first.identity: Outcome.COMMITTED}
    stage.decide(second, batch=1)
    recovery = connect(stage.participant().members, kind.reach(), store=stage.store)
    assert recovery.commit([second]) == {second.identity: Outcome.COMMITTED}
    assert recovery.outcome([second]) == {second.identity: Outcome.COMMITTED}
    assert recovery.abort([third.identity]) == {third.identity: True}
    assert recovery.open() == ()


def test_a_delta_table_is_delivered_into_where_it_lives(where: Where, tmp_path: Path) -> None:
    kind = _Delta(where)
    delivered(kind, tmp_path)
    table = kind.rows(tmp_path)
    assert sorted(table.to_pyarrow_table()["value"].to_pylist()) == [1, 2, 3]
    assert len(table.file_uris()) == 3, "a file for each partition, and none of the aborted work"


@pytest.mark.parametrize(
    "where", [each for each in STORES if each.values != ("hdfs",)], indirect=True
)
def test_an_iceberg_table_is_delivered_into_where_it_lives(where: Where, tmp_path: Path) -> None:
    kind = _Iceberg(where)
    kind.reach = lambda: {"iceberg": kind.properties(tmp_path)}  # type: ignore[method-assign]
    delivered(kind, tmp_path)
    with closing(reached("default", kind.properties(tmp_path))) as catalog:
        rows = catalog.load_table(kind.name).scan().to_arrow()
    assert sorted(rows["value"].to_pylist()) == [1, 2, 3]


def test_an_iceberg_table_on_hdfs_without_hadoops_library_is_refused_by_name(
    tmp_path: Path,
) -> None:
    """It was 'cannot be read; try again', which no second try heals."""
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": "/none"}
    with closing(reached("default", properties)):
        pass
    with closing(sqlite3.connect(tmp_path / "catalog.db")) as found:
        found.execute(
            "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, "
            "metadata_location) VALUES ('default', 'db', 't', 'hdfs://127.0.0.1:1/t/1.json')"
        )
        found.commit()
    sink = IcebergSink("db.t", catalog=properties, application_id="etl")
    with pytest.raises(ConfigurationError, match="libhdfs") as refused:
        sink.bound(CheckpointStore.open(tmp_path / "checkpoint"))
    assert "Delta table on HDFS" in refused.value.remedies[1].change


@pytest.mark.parametrize("option", ["kerberos_keytab", "hadoop_conf_dir"])
def test_an_option_that_deltalake_cannot_take_is_refused_by_name(
    tmp_path: Path, option: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"{option} reach our own client"):
        DeltaSink(
            "hdfs://name:8020/t", application_id="etl", storage_options={option: str(tmp_path)}
        )


def test_a_delta_table_on_hdfs_asks_the_active_name_node_as_a_checkpoint_does() -> None:
    """An observer is behind: a commit that it has not heard of would pass for none."""
    options = DeltaFolder.of("hdfs://service/t", {"dfs.a": "b", "timeout": "60s"}).options
    assert options is not None
    provider = options.pop("dfs.client.failover.proxy.provider.service")
    assert provider.endswith("ConfiguredFailoverProxyProvider")
    assert options == {"dfs.a": "b"}


def test_a_table_on_the_private_s3_is_reached_by_the_environment_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the README of ``airflow-eos new --kind lake`` says it: app, recovery and readers."""
    with local_s3() as options:
        assert not DeltaTable.is_deltatable("s3://lake/none", options), "with Python's lock held"
        for key, value in options.items():
            monkeypatch.setenv(key.upper(), value)
        kind = _Delta(Where("s3://lake"))
        delivered(kind, tmp_path)
        assert sorted(kind.rows(tmp_path).to_pyarrow_table()["value"].to_pylist()) == [1, 2, 3]
