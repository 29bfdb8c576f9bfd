"""Rows that are kept beside perishable work: there before a decision, gone after the batch."""

from __future__ import annotations

import io
import uuid
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.decisions import PerishableRows, opened_rows
from airflow_eos.core.delivery.spill import SpillStream
from airflow_eos.errors import StoreError


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore.open(tmp_path / "checkpoint")


def kept(store: CheckpointStore, *keeping: str, batches: int = 1) -> PerishableRows:
    rows = PerishableRows(store, keeping)
    for batch in range(batches):
        for name in ("orders", "totals"):
            rows.keep(name, batch, f"etl-0-0-7-{batch}", b"rows")
    return rows


def there(store: CheckpointStore) -> set[tuple[str, int]]:
    rows = PerishableRows(store)
    return {
        (name, batch)
        for name in ("orders", "totals")
        for batch in range(9)
        if rows.keys(name, batch)
    }


def test_what_is_kept_is_found_by_participant_batch_and_key(store):
    rows = kept(store)
    rows.keep("orders", 0, "etl-1-0-7-0", b"others")
    assert rows.keys("orders", 0) == {"etl-0-0-7-0", "etl-1-0-7-0"}
    assert rows.read("orders", 0, "etl-1-0-7-0") == b"others"
    assert rows.keys("orders", 1) == rows.keys("others", 0) == frozenset()


def test_a_key_that_comes_twice_is_refused_and_the_first_rows_stay(store):
    rows = kept(store)
    with pytest.raises(StoreError, match="a key came twice"):
        rows.keep("orders", 0, "etl-0-0-7-0", b"others")
    assert rows.read("orders", 0, "etl-0-0-7-0") == b"rows"


def test_rows_that_somebody_has_deleted_are_no_empty_rows(store):
    rows = kept(store)
    rows.remove(rows.listed(0))
    with pytest.raises(StoreError, match="is gone"):
        rows.read("orders", 0, "etl-0-0-7-0")


def arrow(batches: int = 2) -> tuple[bytes, int]:
    """A stream, and where its first rows end."""
    rows = pa.record_batch({"value": [b"a", b"b"]})
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, rows.schema) as writer:
        writer.write_batch(rows)
        first = stream.tell()
        for _ in range(batches - 1):
            writer.write_batch(rows)
    return stream.getvalue(), first


@pytest.mark.parametrize(
    "cut", ["empty", "NULs", "between two messages", "within one", "another's"]
)
def test_rows_that_are_not_all_there_are_no_fewer_rows(store, cut):
    """Arrow reads what was cut off between two messages as a shorter stream."""
    stream, first = arrow()
    left = {
        "empty": b"",
        "NULs": b"\0" * len(stream),
        "between two messages": stream[:first],
        "within one": stream[: first - 3],
        "another's": b"a stranger's" + stream[-8:],
    }[cut]
    rows = PerishableRows(store)
    rows.keep("orders", 0, "a", stream)
    rows.keep("orders", 0, "b", left)
    assert rows.stream_of("orders", 0, "a").read_all().num_rows == 4
    with pytest.raises(StoreError, match="truncated or foreign") as refused:
        rows.stream_of("orders", 0, "b")
    assert "eos/kept/orders/perishable/0/b" in refused.value.remedies[0].change


def test_kept_rows_with_a_bit_of_another_value_are_no_rows(store):
    """Arrow gives other values for them, or ends the process, again at each start."""
    spill = SpillStream({"about": "these"})
    spill.add(pa.record_batch({"value": [uuid.uuid4().bytes for _ in range(20)]}))
    stream = spill.whole()
    rows = PerishableRows(store)
    rows.keep("orders", 0, "whole", stream)
    assert rows.stream_of("orders", 0, "whole").read_all().num_rows == 20
    for at in range(0, len(stream) - 48, 5):
        damaged = bytearray(stream)
        damaged[at] ^= 4
        with pytest.raises(StoreError, match="their sum is another"):
            opened_rows(bytes(damaged), "there")


def test_a_batch_that_is_over_and_those_before_it_go_and_later_ones_stay(store):
    kept(store, "orders", "totals", batches=4).prune(2)
    assert there(store) == {("orders", 3), ("totals", 3)}


def test_the_first_time_goes_what_a_participant_left_that_keeps_nothing_any_more(store):
    """A crash, and a restart without ``keep_rows``: nothing else would ever look there."""
    rows = kept(store, batches=2)
    rows.prune(1)
    assert there(store) == set()
    assert not list(Path(store.location, "eos/kept/orders/perishable").iterdir())


def test_afterwards_only_those_are_looked_for_that_keep(store):
    """Each look is a request to the store, for every batch."""
    rows = PerishableRows(store, ["orders"])
    rows.prune(0)
    kept(store)
    rows.prune(0)
    assert there(store) == {("totals", 0)}


def test_rows_of_another_kind_under_that_folder_are_left_alone(store):
    store.put("eos/kept/orders/rows/0-0-0-ab", b"of an upsert")
    kept(store).prune(0)
    assert store.get("eos/kept/orders/rows/0-0-0-ab") == b"of an upsert"
