"""When a database may forget: counted in batches, however many processes deliver them."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_eos.participants.sql.ledger import KEPT_BATCHES, Counted, Ledger, Standing
from airflow_eos.protocol.decision import Decision, Verdict
from airflow_eos.protocol.ownership import Note
from airflow_eos.protocol.work import PreparedWork
from tests.support.owners import owner_at

HOUR_MS = 3_600_000
OWNER = owner_at("/a")


class Row:
    """The row of a name, as every process finds it; see :class:`Book`."""

    def __init__(self) -> None:
        self.standing = Standing(OWNER, None, 0, None)

    def note(self, note: Note, owner: str) -> Standing:
        assert owner == OWNER.text
        before = self.standing
        if before.note is None or before.note < note:
            self.standing = before._replace(note=note)
        return before

    def move_floor(self, floor_ms: int, counted: Counted) -> None:
        floor_ms = max(floor_ms, self.standing.floor_ms)
        self.standing = self.standing._replace(floor_ms=floor_ms, counted=counted)


def deliver(row: Any, batch: int, *, at_ms: int) -> None:
    """One batch, by a process of its own."""
    work = PreparedWork("postgres", "orders", f"key-{batch}", 1, "0" * 32, at_ms, None, {})
    decision = Decision(
        batch_id=batch,
        attempt=1,
        verdict=Verdict.COMMIT,
        works=(work,),
        offsets="v1\n{}\n{}",
        decided_by="driver 1",
        decided_at_ms=1,
        nonce="0" * 32,
    )
    Ledger(row, "orders").note(decision, OWNER)


@pytest.fixture
def row() -> Row:
    return Row()


def test_the_floor_moves_where_a_run_has_one_batch(row: Row) -> None:
    for batch in range(3 * KEPT_BATCHES + 7):
        deliver(row, batch, at_ms=(batch + 100) * HOUR_MS)
        kept = batch - row.standing.floor_ms // HOUR_MS + 100
        assert kept >= KEPT_BATCHES or row.standing.floor_ms == 0
        assert kept <= 2 * KEPT_BATCHES or row.standing.floor_ms == 0
    assert row.standing.floor_ms == (2 * KEPT_BATCHES + 99) * HOUR_MS


def test_a_clock_that_was_put_back_forgets_nothing_that_is_promised(row: Row) -> None:
    deliver(row, 0, at_ms=5_000 * HOUR_MS)
    deliver(row, KEPT_BATCHES, at_ms=2_000 * HOUR_MS)
    assert row.standing.floor_ms == 1_999 * HOUR_MS


def test_a_sleeper_moves_nothing(row: Row) -> None:
    deliver(row, 5 * KEPT_BATCHES, at_ms=5_000 * HOUR_MS)
    before = row.standing
    deliver(row, 3, at_ms=1 * HOUR_MS)
    assert row.standing == before


def test_a_name_that_was_given_up_is_counted_anew(row: Row) -> None:
    deliver(row, 5 * KEPT_BATCHES, at_ms=5_000 * HOUR_MS)
    row.standing = row.standing._replace(note=None)
    deliver(row, 0, at_ms=6_000 * HOUR_MS)
    assert row.standing.counted == Counted(0, 6_000 * HOUR_MS)
