"""When a database may forget: counted in batches, however many processes deliver them.

No clock has a part in it: a server's that was ahead for 1,000 batches once left a floor in the
future, below which decided work could neither be committed nor asked about.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from airflow_eos.errors import CheckpointFormatError, DeliveryError
from airflow_eos.kinds.sql.participant import (
    GENERATION,
    KEPT_BATCHES,
    KeysOfName,
    LedgerState,
    NameRow,
    SqlParticipant,
    floor_of,
)
from airflow_eos.protocol.decision import Decision, Outcome, PreparedWork, Verdict
from airflow_eos.protocol.participant import Note
from tests.support.owners import owner_at

OWNER = owner_at("/a")


class Row:
    """The row of a name, as every process finds it; see :class:`OwnershipTable`."""

    def __init__(self) -> None:
        self.row = NameRow(OWNER, None, 0, None)
        self.waits: set[str] = set()
        self.called = "name 'orders'"

    def standing(self) -> NameRow:
        return self.row

    def ask(self, _keys: Any) -> LedgerState:
        return LedgerState(self.row.floor, self.waits, set())

    def note(self, note: Note, owner: str) -> NameRow:
        assert owner == OWNER.text
        before = self.row
        if before.note is None or before.note < note:
            self.row = before._replace(note=note)
        return before

    def begin_generation(self, generation: int, counted: int) -> None:
        generation = max(generation, self.row.generation)
        self.row = self.row._replace(generation=generation, counted=counted)


class Sql(SqlParticipant):
    """One whose work is open until it is ended."""

    kind = "postgres"
    where_it_waits = "memory"

    def __init__(self, row: Row) -> None:
        self.book = lambda *_: row  # type: ignore[misc, assignment]
        super().__init__(None, KeysOfName("orders"), name="orders", mark="")
        self.row = row

    def check_detail(self, work: PreparedWork) -> None: ...

    def end(self, work: PreparedWork) -> None:
        self.row.waits.remove(work.key)

    def remove(self, key: str) -> bool:
        return key in self.row.waits


def prepared(row: Row, batch: int) -> PreparedWork:
    key = f"orders-0-0-{batch:032x}"
    row.waits.add(key)
    detail = {GENERATION: row.row.generation}
    return PreparedWork("postgres", "orders", key, 1, "0" * 32, 0, None, detail)


def deliver(row: Any, batch: int) -> PreparedWork:
    """One batch, by a process of its own."""
    work = prepared(row, batch)
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
    Sql(row).note(decision, OWNER)
    return work


@pytest.fixture
def row() -> Row:
    return Row()


def test_the_floor_moves_where_a_run_has_one_batch(row: Row) -> None:
    began = {0: 0}
    for batch in range(3 * KEPT_BATCHES + 7):
        work = deliver(row, batch)
        assert work.detail[GENERATION] >= row.row.floor, "what is promised now is never below it"
        began.setdefault(row.row.generation, batch + 1)
        oldest = began[max(0, row.row.floor)]
        kept = batch + 1 - oldest
        assert kept >= KEPT_BATCHES - 1 or oldest == 0
        assert kept <= 2 * KEPT_BATCHES
    assert (row.row.generation, row.row.floor) == (3, 2)


def test_a_batch_that_waits_for_a_month_is_not_below_the_floor(row: Row) -> None:
    first = deliver(row, KEPT_BATCHES)
    deliver(row, KEPT_BATCHES)
    assert first.detail[GENERATION] >= row.row.floor


def test_a_sleeper_moves_nothing(row: Row) -> None:
    deliver(row, 5 * KEPT_BATCHES)
    before = row.row
    deliver(row, 3)
    assert row.row == before


def test_a_name_that_was_given_up_is_counted_anew(row: Row) -> None:
    deliver(row, 0)
    deliver(row, 5 * KEPT_BATCHES)
    row.row = row.row._replace(note=None)
    deliver(row, 0)
    assert (row.row.generation, row.row.counted) == (1, 0)


def test_commit_and_outcome_never_disagree_about_work_below_the_floor(row: Row) -> None:
    """One said OPEN, so a plan said COMMIT; the other UNKNOWN: advice went in a circle."""
    ours, below = Sql(row), prepared(row, 1)
    row.begin_generation(below.detail[GENERATION] + 2, 7)
    above = prepared(row, 2)
    assert ours.outcome([below, above]) == {
        below.identity: Outcome.UNKNOWN,
        above.identity: Outcome.OPEN,
    }
    assert ours.commit([below])[below.identity] is Outcome.UNKNOWN
    assert row.waits == {below.key, above.key}, "nothing was done"


def test_work_below_the_floor_is_refused_before_it_is_decided(row: Row) -> None:
    ours, below = Sql(row), prepared(row, 1)
    ours.require_decidable([below])
    row.begin_generation(floor_of(below.detail[GENERATION]) + 3, 7)
    with pytest.raises(DeliveryError, match=r"another driver goes on.*Nothing was decided"):
        ours.require_decidable([below])


def test_work_that_does_not_say_its_generation_is_refused(row: Row) -> None:
    strange = msgspec.structs.replace(prepared(row, 1), detail={})
    with pytest.raises(CheckpointFormatError, match="newer release"):
        Sql(row).outcome([strange])
