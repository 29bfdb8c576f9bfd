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


def commit(store, batch_id: int) -> None:
    store.put(f"commits/{batch_id}", b'v1\n{"nextBatchWatermarkMs":0}')


def plan(store, batch_id: int) -> None:
    store.put(f"offsets/{batch_id}", b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1}\n1')


def test_a_decision_for_the_batch_in_flight_stands(store, make_decision):
    commit(store, 6)
    plan(store, 7)
    assert DecisionLog(store).record(make_decision(7)) is True


def test_a_driver_that_slept_over_its_batch_and_its_pruning_decides_nothing(store, make_decision):
    # Stopped before it decided batch 7; a second driver sealed the attempt, delivered the batch,
    # and 100 batches later the seal was pruned: nothing stands in the sleeper's way but this.
    plan(store, 7)
    log = DecisionLog(store)
    log.record(make_decision(7))
    commit(store, 7)
    log.prune(8)
    assert log.record(make_decision(7)) is False
    assert log.of_batch(7) == ()


def test_nor_does_it_where_spark_has_purged_the_batch_itself(store, make_decision):
    plan(store, 120)
    commit(store, 119)
    assert DecisionLog(store).record(make_decision(7)) is False
    assert DecisionLog(store).of_batch(7) == ()


def test_nor_between_the_two_halves_of_sparks_purge(store, make_decision):
    plan(store, 120)
    commit(store, 7)  # offsets/7 is already gone
    assert DecisionLog(store).record(make_decision(7)) is False
