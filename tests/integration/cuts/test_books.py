"""Readers of several outputs take cuts while the pipeline dies: the books balance at each."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import duckdb
import polars as pl
import pytest

from airflow_eos import cuts
from airflow_eos.errors import CheckpointError
from tests.integration.hazards.stopping import stopped_at, wake
from tests.integration.kinds.delivery import BATCH, Delivery
from tests.support.kinds.books import Books, unbalanced
from tests.support.kinds.reading import Readers


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


SMALL = 12
"""Rows of a batch: many batches, many cuts."""
LOOKS = 10_000
"""How many cuts are read, each with every output, before it is enough."""
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


def dies_and_goes_on(delivery: Delivery, number: int, place: str) -> bool:
    """Killed, lost in part, recovered, compacted; whether a reader without cuts saw halves."""
    delivery.pipeline.feed(3 * SMALL)
    delivery.killed(place)
    (delivery.pipeline.folder / f"{place.partition('@')[0]}.hit").unlink()
    halves = bool(unbalanced(delivery.kind.read(delivery.at)))
    if place == "decided@2":
        delivery.pipeline.lose_what_is_open()  # so a part of the batch is replayed
    if number % 2:
        delivery.recover()
    if number % 4 == 0:
        compacted(delivery)
    delivery.resume()
    return halves


def is_followed_and_wakes(delivery: Delivery, place: str) -> None:
    delivery.pipeline.feed(3 * SMALL)
    with stopped_at(delivery.pipeline, place) as zombie:
        delivery.resume()
        delivery.pipeline.feed(SMALL)
        delivery.resume()
        wake(zombie)
    (delivery.pipeline.folder / f"{place.partition('@')[0]}.hit").unlink()


@pytest.mark.proof
@pytest.mark.timeout(1800)
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
    with Readers(delivery.at, delivery.pipeline.checkpoint) as readers:
        halves = [dies_and_goes_on(delivery, *each) for each in enumerate(KILLED_AT)]
        for place in ("cutting@2", "settled@2", "decided@2"):
            is_followed_and_wakes(delivery, place)
        again = enumerate(cycle(KILLED_AT))
        while readers.looks < LOOKS and readers.are_alive:
            dies_and_goes_on(delivery, *next(again))
        newest = cuts.latest(delivery.pipeline.checkpoint).batch_id
        readers.look_at_all_of(newest)
        found = readers.end()
    assert [each.failed for each in found if each.failed] == []
    assert [each.wrong for each in found if each.wrong] == []
    record_property("cuts read", str(sum(each.looks for each in found)))
    assert sum(each.looks for each in found) >= LOOKS
    assert sum(halves) > 2, "without cuts a reader saw halves"
    assert set().union(*(each.batches for each in found)) == set(range(newest + 1))
    assert newest >= 3 * len(KILLED_AT)
    newest_cut = read_at(delivery, cuts.latest(delivery.pipeline.checkpoint))
    assert newest_cut == delivery.kind.expected(delivery.pipeline.expected), "to the row"
    with pytest.raises(CheckpointError, match="newest state"):
        cuts.spark_frame(cuts.latest(delivery.pipeline.checkpoint), "newest", delivery.spark)


def compacted(delivery: Delivery) -> None:
    from deltalake import DeltaTable

    DeltaTable(str(delivery.at.out / "delta")).optimize.compact()
