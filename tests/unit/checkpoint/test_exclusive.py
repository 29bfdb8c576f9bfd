"""The race that refuses a store, on stores that fail it in each way."""

from __future__ import annotations

import time
from typing import Any, Literal

import pytest
from obstore.exceptions import AlreadyExistsError
from obstore.store import MemoryStore

from airflow_eos.checkpoint import CheckpointStore
from airflow_eos.checkpoint.store import check_create_if_absent, race_create, told
from airflow_eos.errors import StoreError


class LooksFirst(MemoryStore):
    """As s3mock and fsspec: it looks whether the name is free, and then writes."""

    def put(  # type: ignore[override]
        self, path: str, file: bytes, *, mode: Literal["create", "overwrite"]
    ) -> Any:
        if mode == "create" and _there(self, path):
            raise AlreadyExistsError(path)
        time.sleep(0.01)
        return super().put(path, file, mode="overwrite")


class Torn(MemoryStore):
    """One wins, and another's content stands there."""

    def put(  # type: ignore[override]
        self, path: str, file: bytes, *, mode: Literal["create", "overwrite"]
    ) -> Any:
        done = super().put(path, file, mode=mode)
        super().put(path, b"other")
        return done


def _there(store: MemoryStore, path: str) -> bool:
    try:
        store.head(path)
    except FileNotFoundError:
        return False
    return True


def test_a_store_that_looks_and_then_writes_passes_one_after_another_and_not_the_race():
    store = CheckpointStore(LooksFirst(), "memory://looks-first")
    check_create_if_absent(store, rounds=0)
    with pytest.raises(StoreError, match=r"race of 8 creates at once: several won in [1-8] of 8"):
        check_create_if_absent(store, rounds=8)
    assert store.delete_folder("eos") is False, "a probe was left"


def test_what_a_start_asks_of_a_store_has_the_race_in_it():
    with pytest.raises(StoreError, match="race of 8 creates"):
        CheckpointStore(LooksFirst(), "memory://looks-first").check_create_if_absent()


def test_a_winner_whose_content_does_not_stand_is_seen():
    found = race_create(CheckpointStore(Torn(), "memory://torn"), rounds=20)
    assert not found.is_exclusive
    assert "torn in" in told(found)


def test_a_store_with_one_winner_passes_and_nothing_is_left():
    store = CheckpointStore(MemoryStore(), "memory://good")
    found = race_create(store, rounds=20)
    assert (found.is_exclusive, told(found)) == (True, "one winner in each of 20 rounds")
    assert store.delete_folder("eos") is False
