"""What a batch asks of its store, since an object store bills each request."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

from obstore.store import MemoryStore

from airflow_eos.core.checkpoint import CheckpointStore, DecisionLog
from airflow_eos.core.checkpoint.cuts import CutWriter
from tests.support.authority import OFFSETS
from tests.unit.core.delivery.driving import driver
from tests.unit.core.delivery.fakes import FakeBroker, FakeFrame, FakeParticipant, FakeSink


class Counting:
    """A store that counts by the classes of a price list; a listing costs as much as a write."""

    def __init__(self) -> None:
        self.real = MemoryStore()
        self.asked: Counter[str] = Counter()

    def put(self, path: str, file: bytes, *, mode: Literal["create", "overwrite"]) -> object:
        self.asked["PUT"] += 1
        return self.real.put(path, file, mode=mode)

    def get(self, path: str) -> Any:
        self.asked["GET"] += 1
        return self.real.get(path)

    def head(self, path: str) -> Any:
        self.asked["HEAD"] += 1
        return self.real.head(path)

    def list_with_delimiter(self, prefix: str) -> Any:
        self.asked["LIST"] += 1
        return self.real.list_with_delimiter(prefix)

    def delete(self, paths: str) -> None:
        self.asked["DELETE"] += 1
        self.real.delete(paths)


def test_a_batch_asks_for_what_the_page_of_stores_says_and_no_more() -> None:
    """``docs/checkpoint-stores.md`` makes money of these, and of one GET that watches topics."""
    counting = Counting()
    log = DecisionLog(CheckpointStore(counting, "s3://b/q"))
    broker = FakeBroker()
    cuts = CutWriter(log._store, FakeParticipant(broker), lambda _batch: None, 100)
    batch = driver(FakeSink(broker), broker, log, cut=cuts.write)
    batch(FakeFrame(["a"], ["b"]), 0)
    counting.real.put("offsets/1", OFFSETS.encode())
    counting.asked.clear()
    batch(FakeFrame(["c"]), 1)
    by_the_test = Counter(GET=1)  # that Spark has planned
    assert counting.asked - by_the_test == Counter(LIST=5, GET=3, HEAD=2, PUT=2)
