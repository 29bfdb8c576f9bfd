"""Spark's offset log is not exclusive: the decisions say what was delivered."""

from __future__ import annotations

import json

import pytest

from airflow_eos.checkpoint import DecisionLog, OffsetLog
from airflow_eos.errors import CheckpointFormatError, SupersededError

pytestmark = pytest.mark.unit


def content(end: int, planned_at_ms: int = 7) -> str:
    stamp = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": planned_at_ms})
    return f'v1\n{stamp}\n{{"in":{{"0":{end}}}}}'


def plan(store, batch: int, *, end: int, planned_at_ms: int = 7) -> str:
    text = content(end, planned_at_ms)
    store.put(f"offsets/{batch}", text.encode())
    return text


def complete(store, batch: int) -> None:
    plan(store, batch, end=10 * batch)
    store.put(f"commits/{batch}", b'v1\n{"nextBatchWatermarkMs":0}')


@pytest.fixture
def decisions(store) -> DecisionLog:
    return DecisionLog(store)


@pytest.fixture
def log(store, decisions) -> OffsetLog:
    return OffsetLog(store, decisions)


def test_the_entry_is_believed_where_spark_evaluates_what_it_says(store, log):
    text = plan(store, 3, end=30)
    assert log.evaluated(3, 7) == text


def test_an_entry_that_another_driver_has_replaced_is_not(store, log):
    """Both adders won; the file has the other one's end, and what runs here has ours."""
    plan(store, 3, end=45, planned_at_ms=8)
    with pytest.raises(SupersededError, match="planned at 8, but this driver evaluates"):
        log.evaluated(3, 7)


def test_an_entry_that_is_gone_is_not(log):
    with pytest.raises(SupersededError, match="is gone"):
        log.evaluated(3, 7)


def test_a_damaged_entry_is_refused_by_its_name(store, log):
    store.put("offsets/3", b"v1\n")
    with pytest.raises(CheckpointFormatError, match="offsets/3"):
        log.evaluated(3, 7)


@pytest.mark.parametrize("replaced", [4, 5])
def test_a_starting_driver_puts_the_newest_two_entries_right(
    store, decisions, log, make_decision, replaced
):
    delivered = {batch: plan(store, batch, end=10 * batch) for batch in (3, 4, 5)}
    complete(store, 4)
    for batch, text in delivered.items():
        assert decisions.record(make_decision(batch, offsets=text))
    plan(store, replaced, end=99, planned_at_ms=8)
    store.put(f"offsets/.{replaced}.crc", b"the other one's sum")
    log.repair()
    assert store.get(f"offsets/{replaced}") == delivered[replaced].encode()
    assert store.get(f"offsets/.{replaced}.crc") is None, "Hadoop would refuse the file"
    log.require_as_decided(replaced)


def test_what_was_replaced_after_the_repair_is_found_by_the_first_batch(
    store, decisions, log, make_decision
):
    complete(store, 3)
    assert decisions.record(make_decision(4, offsets=plan(store, 4, end=40)))
    log.repair()
    plan(store, 4, end=99, planned_at_ms=8)
    with pytest.raises(SupersededError, match="is not what batch 4 was delivered with"):
        log.require_as_decided(4)


def test_a_batch_that_nobody_promised_is_taken_as_it_is_planned(
    store, decisions, log, make_decision
):
    complete(store, 3)
    plan(store, 4, end=40)
    sealed = make_decision(
        4, verdict=type(make_decision(4).verdict).ABORT, works=(), offsets=None, reason="x"
    )
    assert decisions.record(sealed)
    plan(store, 4, end=99, planned_at_ms=8)
    log.repair()
    log.require_as_decided(4)
    assert store.get("offsets/4") == content(99, 8).encode()


def test_where_nothing_is_planned_nothing_is_repaired(log):
    log.repair()
