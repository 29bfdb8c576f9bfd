"""The same tests for each kind of table."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.lake.kinds import KINDS
from tests.integration.lake.stage import Stage
from tests.support.kinds.lake_by_hand import S3
from tests.support.servers.iceberg import EmbeddedIcebergRest
from tests.support.servers.s3 import EmbeddedS3


@pytest.fixture(scope="session")
def bucket() -> Iterator[EmbeddedS3]:
    """A server whose objects are files; children are told of it by the environment."""
    with EmbeddedS3() as server:
        told = {"data": str(server.data), "url": server.url, "options": server.storage_options}
        os.environ[S3] = json.dumps(told)
        yield server
        del os.environ[S3]


@pytest.fixture(scope="session")
def catalog(bucket: EmbeddedS3) -> Iterator[EmbeddedIcebergRest]:
    """A REST catalog, which the environment names as well."""
    with EmbeddedIcebergRest(bucket) as server:
        told = {"uri": server.uri, "database": str(server.database)}
        os.environ[S3] = json.dumps(json.loads(os.environ[S3]) | {"catalog": told})
        yield server


def _param(kind: str) -> object:
    # A catalog is asked over HTTP what the SQL one answers at once: the same again, and slower.
    is_again = "-rest-" in kind or kind == "delta-upsert-s3"
    return pytest.param(kind, marks=pytest.mark.proof) if is_again else kind


@pytest.fixture(params=map(_param, sorted(KINDS)))
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    return _made(request, tmp_path)


@pytest.fixture(params=map(_param, sorted(kind for kind in KINDS if "upsert" not in kind)))
def appending(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    """Of the kinds whose tasks write the very files that the table is to name."""
    return _made(request, tmp_path)


def _made(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    if request.param.endswith("-s3"):
        request.getfixturevalue("bucket")
    if "-rest-" in request.param:
        request.getfixturevalue("catalog")
    return Stage(KINDS[request.param], tmp_path).made()
