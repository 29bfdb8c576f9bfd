"""Which driver is the newest: whoever slept, however long, finds out before he shows anything."""

from __future__ import annotations

import obstore.store
import pytest

from airflow_eos.checkpoint import CheckpointStore, DecisionLog, Tenure, newest_term, take_term
from airflow_eos.checkpoint.backend import term_path
from airflow_eos.checkpoint.terms import still_in_flight
from airflow_eos.errors import CheckpointFormatError, SupersededError


def plan(store: CheckpointStore, *batches: int) -> None:
    for batch in batches:
        store.put(f"offsets/{batch}", b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1}\n1')


def test_terms_are_counted_from_one_and_the_older_ones_go(store):
    assert newest_term(store) == 0
    first, second = take_term(store, taken_by="a"), take_term(store, taken_by="b")
    assert (first.term.number, second.term.number, newest_term(store)) == (1, 2, 2)
    assert store.get(term_path(1)) is None


def test_the_newest_driver_may_deliver_the_newest_batch(store):
    tenure = take_term(store, taken_by="a")
    plan(store, 6, 7)
    tenure.require(7)


def test_a_driver_is_superseded_as_soon_as_another_has_started(store):
    tenure = take_term(store, taken_by="a")
    plan(store, 7)
    assert tenure.is_newest()
    take_term(store, taken_by="b")
    assert not tenure.is_newest()
    with pytest.raises(SupersededError, match="a driver with term 2 has started since"):
        tenure.require(7)


def test_a_driver_that_slept_over_its_batch_and_its_pruning_may_not_rely_on_its_decision(
    store, make_decision
):
    """Hole 1: 1,800 of 2,700 rows came twice. Spark's and our places of the batch are empty again,
    so both let it in."""
    sleeper = take_term(store, taken_by="a")
    take_term(store, taken_by="b")
    plan(store, 250)
    plan(store, 101)  # Spark's add answers True again after a purge
    assert DecisionLog(store).record(make_decision(101)) is True
    with pytest.raises(SupersededError):
        sleeper.require(101)


def test_the_newest_driver_does_not_rely_on_a_batch_that_is_not_the_newest(store):
    """The listing: nothing else helps against places that were purged."""
    tenure = take_term(store, taken_by="a")
    plan(store, 101, 250)
    with pytest.raises(SupersededError, match="the newest batch planned is 250"):
        tenure.require(101)


def test_nor_on_one_that_spark_has_committed(store):
    tenure = take_term(store, taken_by="a")
    plan(store, 7)
    store.put("commits/7", b"v1\n{}")
    with pytest.raises(SupersededError, match="committed this batch meanwhile"):
        tenure.require(7)


def test_a_term_that_is_gone_is_superseded_although_no_newer_one_is_seen(store):
    tenure = take_term(store, taken_by="a")
    plan(store, 7)
    store.delete([term_path(1)])
    with pytest.raises(SupersededError, match="is gone"):
        tenure.require(7)


def test_a_copy_put_back_in_place_gives_two_drivers_a_number_and_not_a_nonce(store):
    tenure = take_term(store, taken_by="a")
    plan(store, 7)
    store.delete([term_path(1)])
    assert take_term(store, taken_by="b").term.number == 1
    assert not tenure.is_newest()
    with pytest.raises(SupersededError, match="belongs to another driver now"):
        tenure.require(7)


def test_terms_are_pruned_in_ascending_order():
    """Or a driver could see its own term, and the newer one not any more."""
    deleted: list[str] = []

    class Watched(obstore.store.MemoryStore):
        def delete(self, paths):
            deleted.append(paths)
            return super().delete(paths)

    store = CheckpointStore(Watched(), "memory")
    for number in (3, 1, 12, 2):
        store.put(term_path(number), b"{}")
    take_term(store, taken_by="a")
    assert deleted == [term_path(number) for number in (1, 2, 3, 12)]


def test_a_place_that_was_pruned_is_not_the_newest_term(store, monkeypatch):
    """It slept between the look and the create, while others came and went."""
    create = store.create

    def after_others(path: str, data: bytes) -> bool:
        monkeypatch.setattr(store, "create", create)
        for name in ("b", "c"):
            take_term(store, taken_by=name)
        store.delete([term_path(1)])
        return bool(create(path, data))

    monkeypatch.setattr(store, "create", after_others)
    tenure = take_term(store, taken_by="a")
    assert isinstance(tenure, Tenure)
    assert tenure.term.number == newest_term(store) == 3


def test_a_foreign_file_among_the_terms_is_refused(store):
    store.put("eos/drivers/old.json", b"{}")
    with pytest.raises(CheckpointFormatError, match="is foreign"):
        take_term(store, taken_by="a")


@pytest.mark.parametrize("left", [b"", b"\0" * 30, b"v1"], ids=["empty", "NULs", "cut off"])
def test_a_completion_that_a_power_cut_has_damaged_completes_nothing(store, left):
    plan(store, 7)
    store.put("commits/7", left)
    assert still_in_flight(store, 7)
    store.put("commits/7", b"v9\n{}")  # a newer Spark's: whole
    assert not still_in_flight(store, 7)
