"""No real waiting and no log output."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.model.quiet import quiet


@pytest.fixture(autouse=True)
def nobody_waits() -> Iterator[None]:
    with quiet():
        yield
