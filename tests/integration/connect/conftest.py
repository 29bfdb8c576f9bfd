"""One Connect server for all tests of a process, in whose JVM drivers come and die."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.connect.remote import Remote
from tests.support.connect_server import ConnectServer, connect_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    with connect_server(tmp_path_factory.mktemp("connect")) as running:
        yield running


@pytest.fixture
def remote(kafka_broker, tmp_path: Path) -> Remote:
    """A pipeline whose query a client of the server starts."""
    made = Remote(kafka_broker, tmp_path)
    made.feed(1500)
    return made
