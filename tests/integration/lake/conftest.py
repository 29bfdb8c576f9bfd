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
from tests.support.servers.s3 import EmbeddedS3


@pytest.fixture(scope="session")
def bucket() -> Iterator[None]:
    """A server whose objects are files; children are told of it by the environment."""
    with EmbeddedS3() as server:
        server.start()
        told = {"data": str(server.data), "url": server.url, "options": server.storage_options}
        os.environ[S3] = json.dumps(told)
        yield
        del os.environ[S3]


@pytest.fixture(params=sorted(KINDS))
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    if request.param.endswith("-s3"):
        request.getfixturevalue("bucket")
    return Stage(KINDS[request.param], tmp_path).made()
