"""An S3 server for all tests of files."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_eos.local.s3 import EmbeddedS3


@pytest.fixture(scope="session")
def s3() -> Iterator[EmbeddedS3]:
    with EmbeddedS3() as server:
        yield server
