"""Two drivers, or a driver and a recovery: exactly one decides."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from airflow_eos.checkpoint import CheckpointStore, DecisionLog

pytestmark = pytest.mark.unit
WRITERS = 8


def test_of_eight_threads_exactly_one_decides_each_attempt(tmp_path, make_decision):
    gate = Barrier(WRITERS)

    def race(batch_id: int) -> bool:
        log = DecisionLog(CheckpointStore.open(tmp_path))
        gate.wait()
        return log.record(make_decision(batch_id))

    with ThreadPoolExecutor(WRITERS) as pool:
        for batch_id in range(40):
            assert sum(pool.map(race, [batch_id] * WRITERS)) == 1
    log = DecisionLog(CheckpointStore.open(tmp_path))
    assert all(len(log.of_batch(batch_id)) == 1 for batch_id in range(40))
