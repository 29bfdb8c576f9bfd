"""The newest batches of a checkpoint: what they say, and what asking again costs."""

from __future__ import annotations

import pytest

from airflow_eos.checkpoint import CheckpointStore
from airflow_eos.checkpoint.decisions import AT_A_START, sealed
from airflow_eos.page.pipeline_state import Batches, _attempt
from tests.unit.checkpoint.conftest import TroubledBackend


def offsets(end: int, at_ms: int) -> bytes:
    metadata = f'{{"batchWatermarkMs":0,"batchTimestampMs":{at_ms},"conf":{{}}}}'
    return f'v1\n{metadata}\n{{"in":{{"0":{end}}}}}'.encode()


@pytest.fixture
def backend() -> TroubledBackend:
    return TroubledBackend()


@pytest.fixture
def store(backend) -> CheckpointStore:
    store = CheckpointStore(backend, "memory://test")
    store.put("sources/0/0", b'\0v1\n{"in":{"0":5}}')
    for batch in range(4):
        store.put(f"offsets/{batch}", offsets(10 * (batch + 1), 1_000 * (batch + 1)))
    for batch in range(3):
        store.put(f"commits/{batch}", b"v1\n{}")
    return store


def test_each_says_its_rows_when_it_was_planned_and_whether_it_is_complete(store):
    found = Batches().newest(store)
    assert [(b.batch, b.rows, b.planned_at_ms) for b in found] == [
        (0, 5, 1_000),
        (1, 10, 2_000),
        (2, 10, 3_000),
        (3, 10, 4_000),
    ]
    assert [b.committed_at_ms is not None for b in found] == [True, True, True, False]


def test_the_oldest_that_is_shown_has_its_rows_although_the_one_before_is_not(store):
    assert [(b.batch, b.rows) for b in Batches().newest(store, 2)] == [(2, 10), (3, 10)]


def test_where_the_batch_before_is_gone_its_rows_are_not_known(store):
    store.delete(["offsets/0", "offsets/1"])
    assert [(b.batch, b.rows) for b in Batches().newest(store)] == [(2, None), (3, 10)]


@pytest.mark.parametrize(
    ("reason", "verdict"), [(AT_A_START, "sealed"), ("failed: OSError", "abort")]
)
def test_a_seal_that_each_start_begins_with_is_no_abort(reason, verdict):
    assert _attempt(sealed(0, 1, reason=reason, decided_by="d")).verdict == verdict


def test_what_has_not_changed_is_not_read_again(store, backend):
    batches = Batches()
    batches.newest(store)
    backend.calls.clear()
    batches.newest(store)
    assert backend.calls == {"list": 2, "get": 1}, "two listings, and where the source began"


def test_an_entry_that_a_late_rename_has_replaced_is_read_again(store):
    batches = Batches()
    batches.newest(store)
    store.put("offsets/3", offsets(1_000, 4_000))
    assert batches.newest(store)[-1].rows == 970


def test_a_checkpoint_without_batches_has_none():
    assert Batches().newest(CheckpointStore(TroubledBackend(), "memory://new")) == ()
