"""One broker with the proxy before it for all histories of the session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.arena import Arena


@pytest.fixture(scope="session")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with Arena(tmp_path_factory.mktemp("chaos")) as running:
        yield running
