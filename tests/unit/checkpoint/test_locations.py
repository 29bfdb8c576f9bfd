"""Where a checkpoint may live, and what is said where it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_eos.checkpoint import CheckpointStore
from airflow_eos.errors import StoreError


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}", "FILE://{}/", "{}//"])
def test_every_way_to_write_a_local_folder_is_the_same_folder(tmp_path, form):
    store = CheckpointStore.open(form.format(tmp_path / "query"))
    assert store.create("eos/x", b"1") is True
    assert (tmp_path / "query/eos/x").read_bytes() == b"1"
    assert store.location == str(tmp_path / "query")


def test_a_path_object_and_a_relative_path_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert CheckpointStore.open(Path("query")).location == str(tmp_path / "query")


def test_nothing_is_unescaped_as_in_hadoop(tmp_path):
    """All of them: tests/integration/checkpoint/test_locations_as_hadoop.py."""
    CheckpointStore.open(f"file://{tmp_path}/a%20b").put("x", b"1")
    assert (tmp_path / "a%20b" / "x").exists()


@pytest.mark.parametrize("name", ["a%20b", "a b", "50%", "\u00e9", "e\u0301"])
def test_a_bucket_gets_the_name_that_hadoop_gives_it(name):
    store = CheckpointStore.open(f"s3a://bucket//x/{name}/")
    assert repr(store._backend) == f'S3Store(bucket="bucket", prefix="x/{name}")'
    assert store.location == f"s3a://bucket/x/{name}"


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("s3://bucket/some/folder", 'S3Store(bucket="bucket", prefix="some/folder")'),
        ("s3a://bucket/folder", 'S3Store(bucket="bucket", prefix="folder")'),
        ("gs://bucket/folder", 'GCSStore(bucket="bucket", prefix="folder")'),
        (
            "abfss://box@account.dfs.core.windows.net/folder",
            'AzureStore(container_name="box", account_name="account", prefix="folder")',
        ),
    ],
)
def test_object_stores_are_opened_without_contacting_them(location, expected):
    store = CheckpointStore.open(location)
    assert repr(store._backend) == expected
    assert store.location == location


def test_azure_takes_its_account_from_the_options():
    options = {"azure_storage_account_name": "account"}
    store = CheckpointStore.open("az://box/folder", storage_options=options)
    assert 'account_name="account"' in repr(store._backend)


@pytest.mark.parametrize(
    "location", ["webhdfs://name/x", "dbfs:/x", "http://host/x", "memory:///x"]
)
def test_a_store_without_create_if_absent_is_refused_with_what_is_possible(location):
    with pytest.raises(StoreError, match=r"Expected a store that can create.*s3://.*hdfs"):
        CheckpointStore.open(location)


def test_nobody_is_sent_to_a_mounted_hdfs_which_cannot_create_if_absent_either():
    with pytest.raises(StoreError, match="mounted HDFS has no hard links") as refused:
        CheckpointStore.open("dbfs:/mnt/hdfs/x")
    assert "mount it" not in str(refused.value)


@pytest.mark.parametrize("location", ["", "a\0b", "file://other-host/x"])
def test_what_is_no_location_is_refused(location):
    with pytest.raises(StoreError, match=r"Expected a path or URL"):
        CheckpointStore.open(location)


def test_no_secret_of_the_location_or_the_options_is_shown():
    with pytest.raises(StoreError) as refused:
        CheckpointStore.open(
            "abfss://key:hunter2@account.dfs.core.windows.net/x",
            storage_options={"bogus": "hunter4"},
        )
    assert "hunter" not in str(refused.value)
    assert "bogus" in str(refused.value)


def test_an_object_store_in_a_forked_child_is_refused_before_it_hangs(monkeypatch):
    CheckpointStore.open("s3://bucket/folder")
    monkeypatch.setattr("airflow_eos.checkpoint.locations.os.getpid", lambda: -1)
    with pytest.raises(StoreError, match="forked from one that had already used"):
        CheckpointStore.open("s3://bucket/folder")
