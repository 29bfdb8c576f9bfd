"""A task that writes a file of a lake's table: what it may make on the machine where it runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import LongType, NestedField

from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.delivery.port import TaskWriter
from airflow_eos.errors import StoreError
from airflow_eos.kinds.delta.columns import DeltaPartitions
from airflow_eos.kinds.delta.sink import DeltaSink
from airflow_eos.kinds.files.sink import FileSink
from airflow_eos.kinds.files.storage import StagedFolder
from airflow_eos.kinds.iceberg.evolution import staged
from airflow_eos.kinds.iceberg.participant import reach_of, store_options
from airflow_eos.kinds.iceberg.sink import IcebergSink
from airflow_eos.kinds.lake.files import table_files

ROWS = pa.RecordBatch.from_pydict({"id": pa.array([1, 2])})
METADATA = new_table_metadata(
    Schema(NestedField(1, "id", LongType())),
    UNPARTITIONED_PARTITION_SPEC,
    UNSORTED_SORT_ORDER,
    "file:///table",
)


def writer_into(kind: str, table: Path) -> TaskWriter:
    """The writer of a task, as it arrives on an executor."""
    store = CheckpointStore.open(table.parent.parent / "checkpoint")
    if kind == "delta":
        whole = DeltaPartitions(pa.schema([]))
        of = DeltaSink(str(table), application_id="etl", store=store, partitions=whole)
        return of.opened(0, 0)
    sink = IcebergSink(
        "shop.orders", {}, application_id="etl", store=store, folder=str(table), metadata=METADATA
    )
    return sink.opened(0, 0)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_task_never_makes_the_folder_of_a_table_on_a_machine_that_lacks_the_disk(
    tmp_path: Path, kind: str
):
    """Made there, its file was promised, missed by the commit, and written there again for ever."""
    mount = tmp_path / "mount"
    mount.mkdir()
    writer = writer_into(kind, mount / "table")
    with pytest.raises(StoreError, match="Is the disk mounted here, as on the driver and every"):
        writer.write(ROWS)
    writer.abort()
    assert list(mount.iterdir()) == []
    assert not (tmp_path / "checkpoint").exists(), "nothing is noted either"


@pytest.mark.parametrize(("kind", "there"), [("delta", "_delta_log"), ("iceberg", "metadata")])
def test_a_table_that_is_there_gets_its_file_also_where_it_has_none_yet(
    tmp_path: Path, kind: str, there: str
):
    table = tmp_path / "mount" / "table"
    (table / there).mkdir(parents=True)
    writer = writer_into(kind, table)
    writer.write(ROWS)
    work = writer.prepare("0" * 32)
    assert work is not None
    (file,) = table.rglob("*.parquet")
    assert file.stem == work.key


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"s3.region": "eu-1"}, {"aws_region": "eu-1"}),
        ({"client.region": "eu-1"}, {"aws_region": "eu-1"}),
        ({"s3.region": "eu-1", "client.region": "us-1"}, {"aws_region": "eu-1"}),
        (
            {"s3.access-key-id": "a", "s3.secret-access-key": "b", "s3.session-token": "c"},
            {
                "aws_access_key_id": "a",
                "aws_secret_access_key": "b",
                "aws_session_token": "c",
            },
        ),
        (
            {"s3.endpoint": "http://127.0.0.1:1"},
            {"aws_endpoint": "http://127.0.0.1:1", "allow_http": "true"},
        ),
        ({"s3.endpoint": "https://s3"}, {"aws_endpoint": "https://s3"}),
        ({"gcs.oauth2.token": "t"}, {"google_bearer_token": "t"}),
        (
            {"adls.account-name": "a", "adls.sas-token": "s"},
            {"azure_storage_account_name": "a", "azure_storage_sas_key": "s"},
        ),
        ({"uri": "http://catalog", "token": "t", "s3.region": ""}, {}),
    ],
)
def test_a_bucket_is_reached_by_what_a_catalog_says(given: dict[str, str], found: dict[str, str]):
    assert store_options(given) == found


@pytest.mark.parametrize("kind", ["files", "delta", "iceberg"])
@pytest.mark.parametrize("location", ["hdfs://name:8020/t", "s3://lake/t", "/lake/t"])
def test_workers_are_asked_for_what_their_store_needs_before_the_first_row(
    monkeypatch: pytest.MonkeyPatch, kind: str, location: str
):
    """A task said so, in the first batch, where the driver alone had the client of HDFS."""
    asked: list[str] = []
    monkeypatch.setattr(
        f"airflow_eos.kinds.{kind}.sink.check_workers", lambda _, modules: asked.extend(modules)
    )
    monkeypatch.setattr(StagedFolder, "check", lambda *_: None)
    options: Any = {"storage_options": {"aws_region": "eu"}} if location[0] == "s" else {}
    sinks: dict[str, Callable[[], Any]] = {
        "files": lambda: FileSink(location, **options),
        "delta": lambda: DeltaSink(location, application_id="etl", **options),
        "iceberg": lambda: IcebergSink("db.t", {}, application_id="etl", folder=location),
    }
    spark: Any = None
    sinks[kind]().check(spark)
    assert ("hdfs_native" in asked) is location.startswith("hdfs")


@pytest.mark.parametrize(
    ("location", "found"),
    [
        ("s3://lake/t", {"aws_region": "eu-1", "allow_http": "true"}),
        ("gs://lake/t", {"google_base_url": "http://127.0.0.1:1", "allow_http": "true"}),
        (
            "abfss://c@a.dfs.core.windows.net/t",
            {"azure_storage_account_name": "a", "allow_http": "true"},
        ),
        ("hdfs://name:8020/t", {}),
        ("/lake/t", {}),
    ],
)
def test_a_table_is_reached_by_the_keys_of_its_own_store(location: str, found: dict[str, str]):
    """A catalog may know several; a store refuses the keys of another as unknown options."""
    given = {
        "s3.region": "eu-1",
        "gcs.service.host": "http://127.0.0.1:1",
        "adls.account-name": "a",
    }
    table: Any = SimpleNamespace(io=SimpleNamespace(properties=given), location=lambda: location)
    assert reach_of(table) == found


def test_a_change_of_a_table_is_copied_once_and_shows_what_was_staged_since():
    """pyiceberg copies all of the metadata at each look: twenty times in a batch."""
    change = staged(METADATA)
    assert change.table_metadata is change.table_metadata
    with change.update_schema() as columns:
        columns.add_column("later", LongType())
    assert change.table_metadata.schema().column_names == ["id", "later"]
    assert METADATA.schema().column_names == ["id"]


def test_connections_to_a_store_are_made_once():
    """It took a batch 8 ms each time, of a task, of a look and of a commit."""
    near, far = ({"aws_region": each, "aws_endpoint": "http://127.0.0.1:1"} for each in "ab")
    at = "s3://bucket/table"
    assert table_files(at, near) is table_files(at, dict(near))
    assert table_files(at, near) is not table_files(at, far), "a catalog has vended other keys"
