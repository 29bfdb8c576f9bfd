"""Decisions go with Spark's own retention, at a cost that does not grow."""

from __future__ import annotations

from airflow_eos.checkpoint import DecisionLog
from airflow_eos.checkpoint.backend import decision_path
from airflow_eos.protocol.decision import encode


def fill(store, make_decision, batches) -> None:
    for batch_id in batches:
        store.put(decision_path(batch_id, 1), encode(make_decision(batch_id)))


def standing(store) -> list[int]:
    return sorted(int(name) for name in store.folders("eos/decisions"))


def test_older_batches_go_and_younger_ones_stay(store, make_decision):
    fill(store, make_decision, [0, 1, 2, 9, 10, 11])
    assert DecisionLog(store).prune(10) == 4
    assert standing(store) == [10, 11]


def test_nothing_goes_below_the_first_batch(store, make_decision):
    fill(store, make_decision, [0, 1])
    log = DecisionLog(store)
    assert [log.prune(-100), log.prune(-99), log.prune(0)] == [0, 0, 0]
    assert log.prune(1) == 1
    assert standing(store) == [1]


def test_every_attempt_of_a_batch_goes(store, make_decision):
    for attempt in (1, 2, 3):
        store.put(decision_path(4, attempt), encode(make_decision(4, attempt)))
    store.put("eos/decisions/4/.4.json.tmp", b"half")
    assert DecisionLog(store).prune(5) == 1
    assert standing(store) == []
    assert store.delete_folder("eos/decisions/4") is False


def test_a_folder_that_is_not_a_batch_is_left_alone(store, make_decision):
    fill(store, make_decision, [1])
    store.put("eos/decisions/backup/1.json", b"{}")
    DecisionLog(store).prune(100)
    assert list(store.folders("eos/decisions")) == ["backup"]


def test_pruning_again_finds_nothing_and_going_back_does_not_forget(store, make_decision):
    fill(store, make_decision, range(6))
    log = DecisionLog(store)
    assert [log.prune(3), log.prune(3), log.prune(1), log.prune(4)] == [3, 0, 0, 1]


def test_a_jump_over_many_batches_misses_none(store, make_decision):
    fill(store, make_decision, [0, 3, 50, 5_000])
    log = DecisionLog(store)
    assert log.prune(1) == 1
    assert log.prune(1_000_000) == 3
    assert standing(store) == []


def test_a_call_for_each_batch_costs_two_requests_whatever_the_history(
    troubled, backend, make_decision
):
    fill(troubled, make_decision, range(2_000))
    log = DecisionLog(troubled)
    log.prune(1_000)
    backend.calls.clear()
    for batch_id in range(1_001, 1_101):
        assert log.prune(batch_id) == 1
    assert backend.calls == {"list": 100, "delete": 100}
