"""Every location is the folder that Hadoop's own ``Path`` makes of it, or is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.java_gateway import launch_gateway

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.locations import located
from airflow_eos.errors import StoreError

NFC, NFD = "/a/\u00e9", "/a/e\u0301"
LOCAL = [
    "/a/b",
    "/a/b/",
    "/a//b",
    "///a/b",
    "/a/./b",
    "/a/../b",
    "/a/b/..",
    "/a/b/.",
    "/a/...",
    "/",
    ".",
    "..",
    "a/b",
    "./a",
    "../a",
    "./x:y",
    "x/y:z",
    "a\\b",
    "~/x",
    "/a/~b",
    "/a/my checkpoints",
    "/a/my%20checkpoints",
    "/a/50%",
    "/a/%zz",
    "/a/x#y",
    "/a/x?y",
    "/a/x:y",
    "/C:/a",
    "/:a",
    " /a",
    "/a/b ",
    "/a/b\tc",
    "/a/b\nc",
    "/a/*[0-9]{x}",
    NFC,
    NFD,
    "/a/\U0001f600",
    "file:/a/b",
    "file:/a/b%20c",
    "file:///a/b%20c",
    "file:///a/b c",
    "file:///a//b/",
    "file:///a/../b",
    "file:////a",
    "file:///a/x?q=1",
    "file:///a/x#f",
    "file:///a/..",
    "file:/",
    "file://",
    "file:///",
    "FILE:/a",
    "File:///a",
    "file:/:a",
    "/" + "/".join(["x" * 200] * 15),
]
REMOTE = [
    "s3://bucket/a/b",
    "s3a://bucket/a%20b/",
    "s3a://bucket/a b",
    "s3a://bucket//a//b",
    "s3a://bucket/a/../b",
    "s3a://bucket/x:y",
    "s3a://bucket/50%",
    "s3a://bucket/~x",
    f"s3a://bucket{NFC}",
    f"s3a://bucket{NFD}",
    "S3A://Bucket/a",
    "gs://bucket/a b",
    "abfss://box@acc.dfs.core.windows.net/a%20b",
    "hdfs://nn:8020/a",
    "hdfs://nn/a/",
    "hdfs://nn:8020//a%20b",
    "hdfs://NN:8020/a",
    "hdfs:///a",
    "hdfs:/a",
]
REFUSED_BY_HADOOP = [
    "",
    "x:y",
    "run:1/q",
    ":a",
    "1:/a",
    "file:",
    "file:a/b",
    "//host/a",
    "//host",
    "file://localhost/a",
    "file://host/a",
    "file://[::1]/a",
]
REFUSED_BY_US = {
    "/../b": "leaves its root",
    "file:///a/../../b": "leaves its root",
    "s3a://bucket/../b": "leaves its root",
    "/a\0b": "is no path",
    "/a/\udcff": "is no UTF-8 text",
    "s3a:/bucket/a": "names no bucket",
    "s3a://bucket/a?versionId=3": "part of the folder's name",
    "s3a://bucket/a#b": "part of the folder's name",
    "hdfs://nn/a#b": "part of the folder's name",
    "s3a://key:secret@bucket/a": "holds a login",
}


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    """One JVM for the whole table, in this process's working folder; no Spark in it."""
    gateway = launch_gateway()
    try:
        yield gateway.jvm
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(120)


@pytest.mark.parametrize("location", LOCAL)
def test_a_folder_on_a_disk_is_the_one_that_hadoop_writes_to(jvm, location):
    theirs = _file(jvm, location)
    ours = located(location)
    assert str(ours.local) == theirs
    assert _file(jvm, ours.for_spark) == theirs  # what Spark is given by us
    assert CheckpointStore.open(str(ours)).location == str(ours)  # read again, it is the same


@pytest.mark.parametrize("location", REMOTE)
def test_a_folder_elsewhere_has_the_name_that_hadoop_reads(jvm, location):
    theirs = jvm.org.apache.hadoop.fs.Path(location).toUri()
    ours = located(location)
    named = (theirs.getScheme().lower(), theirs.getAuthority() or "", theirs.getPath())
    assert (ours.scheme, ours.authority, ours.path) == named
    again = jvm.org.apache.hadoop.fs.Path(ours.for_spark).toUri()
    assert (again.getAuthority() or "", again.getPath()) == named[1:]
    assert located(str(ours)) == ours


@pytest.mark.parametrize("location", REFUSED_BY_HADOOP)
def test_what_hadoop_refuses_is_refused_by_name(jvm, location):
    with pytest.raises(Py4JJavaError):
        _file(jvm, location)
    with pytest.raises(StoreError, match=r"not a checkpoint location.*Nothing was written"):
        located(location)


@pytest.mark.parametrize("location", REFUSED_BY_US)
def test_what_nobody_can_have_meant_is_refused_by_name(location):
    with pytest.raises(StoreError, match=REFUSED_BY_US[location]) as refused:
        located(location)
    assert "secret" not in str(refused.value)
    assert refused.value.remedies


def _file(jvm: Any, location: str) -> str:
    """The file of this machine that Hadoop's local file system makes of it."""
    path = jvm.org.apache.hadoop.fs.Path(location)
    files = path.getFileSystem(jvm.org.apache.hadoop.conf.Configuration())
    files.exists(path)  # as FileSystem.checkPath refuses
    found = str(files.pathToFile(path))
    assert found.startswith("/")
    return found
