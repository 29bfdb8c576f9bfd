"""The example of docs/testing.md starts a JVM twice: it is left to ``pytest -m examples``."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder alone; the hook is given all of them."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("examples")
