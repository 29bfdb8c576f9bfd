"""An S3 server for all tests of files, and a stage on each place in each form."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_eos.sinks import FileSink
from tests.integration.files.staged import Stage
from tests.support.servers.hdfs import EmbeddedHdfs
from tests.support.servers.s3 import EmbeddedS3


@pytest.fixture(scope="session")
def s3() -> Iterator[EmbeddedS3]:
    with EmbeddedS3() as server:
        yield server


@pytest.fixture(scope="session")
def hdfs() -> Iterator[EmbeddedHdfs]:
    with EmbeddedHdfs() as server:
        yield server


@pytest.fixture(params=["disk", "bucket", pytest.param("hdfs", marks=pytest.mark.cluster)])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, str]]:
    if request.param == "disk":
        return str(tmp_path / "out"), {}
    if request.param == "hdfs":
        name_node: EmbeddedHdfs = request.getfixturevalue("hdfs")
        return f"{name_node.url}/{tmp_path.name}/{uuid.uuid4().hex[:8]}", {}
    server: EmbeddedS3 = request.getfixturevalue("s3")
    return f"{server.url}/{tmp_path.name}/{uuid.uuid4().hex[:8]}", server.storage_options


@pytest.fixture(params=["listing", "manifest"])
def stage(request: pytest.FixtureRequest, folder: Any, tmp_path: Path) -> Stage:
    where, options = folder
    sink = FileSink(
        where, "json", ["day"], publish=request.param, name="orders", storage_options=options
    )
    made = Stage(sink, tmp_path / "checkpoint")
    made.sink = sink.bound(made.store)
    made.participant.close()
    return made
