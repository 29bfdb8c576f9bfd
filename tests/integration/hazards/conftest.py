"""Pipelines without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_eos.local import EmbeddedKafka
from tests.integration.hazards.direct import Direct, forget_writers

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longer ones of this folder run where they are asked for: ``-m chaos``."""
    if "chaos" in config.getoption("markexpr"):
        return
    for item in items:
        if item.path.parent == FOLDER and item.get_closest_marker("chaos"):
            item.add_marker(pytest.mark.skip(reason="takes minutes: run with -m chaos"))


@pytest.fixture
def direct(kafka_broker: EmbeddedKafka, topic: Callable[..., str], tmp_path: Path) -> Direct:
    return Direct(kafka_broker.bootstrap_servers, tmp_path, topic("out", 2))


@pytest.fixture(autouse=True)
def _no_warm_writers() -> Iterator[None]:
    yield
    forget_writers()
