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
from airflow_eos.kafka.transactions.blocked import find_blocked
from airflow_eos.local.broker import create_topic
from tests.integration.conftest import die_at
from tests.integration.hazards.conftest import _no_warm_writers
from tests.integration.hazards.direct import Direct
from tests.integration.hazards.test_transaction_versions import (
    pipeline,
    test_a_driver_that_died_is_followed_by_one_that_delivers_each_row_once,
    test_recovery_alone_aborts_what_nobody_decided,
    test_recovery_alone_commits_what_was_decided,
    test_rows_whose_promise_timed_out_are_replayed,
    test_the_offsets_of_a_consumer_group_are_set_and_never_lowered,
)

__all__ = [
    "_no_warm_writers",
    "die_at",
    "pipeline",
    "test_a_driver_that_died_is_followed_by_one_that_delivers_each_row_once",
    "test_recovery_alone_aborts_what_nobody_decided",
    "test_recovery_alone_commits_what_was_decided",
    "test_rows_whose_promise_timed_out_are_replayed",
    "test_the_offsets_of_a_consumer_group_are_set_and_never_lowered",
]

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
