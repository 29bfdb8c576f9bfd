"""The same on a broker that is none of Apache Kafka's: franz-go's, in Go, from its module proxy."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.local.broker import create_topic
from airflow_eos.ops.blocked import find_blocked
from tests.brokers.core import *  # noqa: F403 - the same tests
from tests.integration.hazards.direct import Direct

SOURCE = Path(__file__).parent / "another_broker"
PROGRAM = Path(__file__).parents[2] / ".build" / "another_broker"


@pytest.fixture(scope="module", params=["kfake"])
def broker() -> Iterator[Any]:
    if shutil.which("go") is None:
        pytest.skip("there is no Go here")
    subprocess.run(["go", "build", "-o", str(PROGRAM), "."], cwd=SOURCE, check=True)
    with subprocess.Popen(
        [str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        address = running.stdout.readline().strip()

        def topic(name: str, partitions: int = 1) -> str:
            create_topic(address, name, partitions, {})
            return name

        yield SimpleNamespace(bootstrap_servers=address, create_topic=topic)
        running.kill()


def test_a_first_start(broker: Any, pipeline: Direct) -> None:
    pipeline.feed_numbers(50)
    pipeline.run()
    pipeline.assert_exactly_once()
    with ConnectionPool(pipeline.settings) as wire:
        assert wire.cluster.capabilities().remarks() == ()
        assert find_blocked(wire, {pipeline.topic}).partitions == ()
