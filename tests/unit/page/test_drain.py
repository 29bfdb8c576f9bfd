"""A request to drain means one driver: its successor is not shown as draining."""

from __future__ import annotations

import shutil
import time

import pytest

from airflow_eos.checkpoint import CheckpointStore, read_heartbeat, request_drain, write_heartbeat
from airflow_eos.page.look import Look
from tests.support.fleet import said_again
from tests.unit.page.conftest import listed


@pytest.mark.parametrize(("term", "state"), [(7, "draining"), (6, "stalled"), (None, "draining")])
def test_a_request_to_the_driver_before_says_nothing_of_this_one(tmp_path, recorded, term, state):
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(recorded["killed-settling"], checkpoint)
    store = CheckpointStore.open(checkpoint)
    told = read_heartbeat(store)
    assert told is not None
    now = time.time_ns() // 1_000_000
    write_heartbeat(store, said_again(told, term=7, beat_at_ms=now, interval_ms=3_600_000))
    request_drain(store, requested_by="ann", reason="a release", term=term)

    assert Look(listed(checkpoint), 300_000).row().state == state
