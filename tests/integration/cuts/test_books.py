"""Readers of several outputs take cuts while the pipeline dies: the books balance at each."""

from __future__ import annotations

import threading
from typing import Any

import duckdb
import polars as pl
import pytest

from airflow_eos import cuts
from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.cuts import CutLog
from airflow_eos.errors import CheckpointError
from tests.integration.hazards.stopping import stopped_at, wake
from tests.integration.kinds.delivery import BATCH, Delivery
from tests.support.kinds.books import Books, unbalanced
from tests.support.pipeline import wait_until


def read_at(delivery: Delivery, cut: cuts.Cut) -> Books:
    kind: Any = delivery.kind
    found: Books = kind.read_at(delivery.at, cut)
    return found


@pytest.mark.long
@pytest.mark.parametrize("kind", ["bookings"])
def test_killed_between_settle_and_cut(delivery: Delivery) -> None:
    """Rows of the batch are visible and no cut has them, until a recovery writes it."""
    delivery.pipeline.feed(3 * BATCH)
    delivery.killed("settled-some@9")  # seven in the first batch; the topic, then the table
    cut = cuts.latest(delivery.pipeline.checkpoint)
    assert unbalanced(delivery.kind.read(delivery.at)), "without a cut a reader sees halves"
    assert cut.batch_id == 0
    seen = read_at(delivery, cut)
    assert unbalanced(seen) == []
    assert seen["credits"].total() == BATCH
    assert delivery.recover() == 0
    cut = cuts.latest(delivery.pipeline.checkpoint)
    assert cut.batch_id == 1
    assert read_at(delivery, cut)["credits"].total() == 2 * BATCH
    assert unbalanced(read_at(delivery, cut)) == []
    delivery.resume()
    for batch in range(3):
        seen = read_at(delivery, cuts.at(delivery.pipeline.checkpoint, batch))
        assert unbalanced(seen) == []
        assert seen["files"].total() == 2 * (batch + 1) * BATCH
    delivery.assert_exactly_once()
    read_by_others(delivery, cut, 2 * BATCH)


def read_by_others(delivery: Delivery, cut: cuts.Cut, postings: int) -> None:
    """By Spark, Polars and DuckDB."""
    servers = {"kafka.bootstrap.servers": delivery.at.servers["kafka"]}
    assert cuts.spark_frame(cut, "debits", delivery.spark, **servers).count() == postings
    assert cuts.spark_frame(cut, "files", delivery.spark).count() == 2 * postings
    found = cuts.dataset(cut, "files")
    assert pl.scan_pyarrow_dataset(found).collect().height == 2 * postings
    assert duckdb.sql("SELECT count(*) FROM found").fetchall() == [(2 * postings,)]


SMALL = 150
"""Rows of a batch: many batches, many cuts."""
KILLED_AT = (
    "prepared@2",
    "decided@2",
    "settled-some@2",
    "settled-some@6",
    "settled-some@11",
    "settled-some@15",
    "settled@2",
    "cutting@2",
    "looked@3",
    "moved@2",
    "kept-applied@2",
)


class Reader(threading.Thread):
    """Takes a cut, reads every output up to it, and once more one of the cuts before.

    Attributes:
        looks: how many cuts it has read.
        wrong: what was out of balance, or another than when it was read first, by batch.
    """

    def __init__(self, delivery: Delivery) -> None:
        super().__init__(daemon=True)
        self._delivery = delivery
        self._log = CutLog(CheckpointStore.open(delivery.pipeline.checkpoint))
        self._over = threading.Event()
        self._first: dict[int, Any] = {}
        self._failed: Exception | None = None
        self.looks = 0
        self.wrong: list[tuple[int, object]] = []

    def run(self) -> None:
        try:
            while not self._over.is_set():
                for batch in {0: 0, **self._log.listed()}:
                    if batch not in self._first or batch % 7 == self.looks % 7:
                        self.look(batch)
        except Exception as error:  # noqa: BLE001 - raised where it ends
            self._failed = error

    def look(self, batch: int) -> None:
        cut = self._log.of_batch(batch)
        if cut is None:
            return
        books = read_at(self._delivery, cut)
        self.looks += 1
        if found := unbalanced(books):
            self.wrong.append((batch, found))
        seen = {name: hash(frozenset(rows.items())) for name, rows in books.items()}
        if self._first.setdefault(batch, seen) != seen:
            self.wrong.append((batch, "it has changed"))

    def end(self) -> set[int]:
        """The batches whose cuts were read."""
        self._over.set()
        self.join(120)
        if self._failed is not None:
            raise self._failed
        return set(self._first)


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["bookings-everywhere"])
def test_the_books_balance_at_every_cut_whoever_dies(
    delivery: Delivery, record_property: Any
) -> None:
    """Killed at all places, recovered, replayed, taken over, and compacted; seven outputs."""
    delivery.pipeline.settings = {
        **delivery.pipeline.settings,
        "max_offsets_per_trigger": SMALL,
    }
    delivery.pipeline.feed(2 * SMALL)
    delivery.resume()
    reader, halves = Reader(delivery), 0
    reader.start()
    for number, place in enumerate(KILLED_AT):
        delivery.pipeline.feed(3 * SMALL)
        delivery.killed(place)
        (delivery.pipeline.folder / f"{place.partition('@')[0]}.hit").unlink()
        halves += bool(unbalanced(delivery.kind.read(delivery.at)))
        if place == "decided@2":
            delivery.pipeline.lose_what_is_open()  # so a part of the batch is replayed
        if number % 2:
            delivery.recover()
        if number % 4 == 0:
            compacted(delivery)
        delivery.resume()
    for place in ("cutting@2", "settled@2", "decided@2"):
        delivery.pipeline.feed(3 * SMALL)
        with stopped_at(delivery.pipeline, place) as zombie:
            delivery.resume()
            delivery.pipeline.feed(SMALL)
            delivery.resume()
            wake(zombie)
        (delivery.pipeline.folder / f"{place.partition('@')[0]}.hit").unlink()
    newest = cuts.latest(delivery.pipeline.checkpoint).batch_id
    wait_until(lambda: newest in reader._first or not reader.is_alive(), what="the newest cut")
    read = reader.end()
    record_property("cuts read", str(reader.looks))
    assert halves > 2, "without cuts a reader saw halves"
    assert reader.wrong == []
    assert read == set(range(newest + 1))
    assert newest >= 3 * len(KILLED_AT)
    newest_cut = read_at(delivery, cuts.latest(delivery.pipeline.checkpoint))
    assert newest_cut == delivery.kind.expected(delivery.pipeline.expected), "to the row"
    with pytest.raises(CheckpointError, match="newest state"):
        cuts.spark_frame(cuts.latest(delivery.pipeline.checkpoint), "newest", delivery.spark)


def compacted(delivery: Delivery) -> None:
    from deltalake import DeltaTable

    DeltaTable(str(delivery.at.out / "delta")).optimize.compact()
