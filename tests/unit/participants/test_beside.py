"""What is remembered of a name beside its data: who owns it, and how far it delivered."""

from __future__ import annotations

import obstore.store
import pytest

from airflow_eos.checkpoint import CheckpointStore, Decision, Verdict
from airflow_eos.errors import OwnershipError
from airflow_eos.participants.beside import KeptBeside

pytestmark = pytest.mark.unit

HERE = "file:///checkpoint"


@pytest.fixture
def kept() -> CheckpointStore:
    return CheckpointStore(obstore.store.MemoryStore(), "memory")


def decision(batch: int) -> Decision:
    return Decision(
        batch_id=batch,
        attempt=1,
        verdict=Verdict.COMMIT,
        works=(),
        offsets="v1\n{}\n{}",
        decided_by="driver",
        decided_at_ms=1,
        nonce=f"{batch:032x}",
        reason="",
    )


def started(kept: CheckpointStore, *, planned: int | None = None) -> KeptBeside:
    """A driver that found ``planned`` as the newest batch, which was decided."""
    driver = KeptBeside(kept, "name 'orders'")
    driver.claim(HERE)
    driver.require_owner(HERE, newest_planned=planned, decisions_of=lambda n: [decision(n)])
    return driver


def notes(kept: CheckpointStore) -> int:
    return len(kept.list("notes"))


def test_notes_of_former_drivers_are_removed_once_one_exceeds_them(kept: CheckpointStore) -> None:
    """Else every start would read one more."""
    for batch in range(5):
        driver = started(kept, planned=batch - 1 if batch else None)
        assert notes(kept) == min(batch, 1)
        driver.note(decision(batch))
        assert notes(kept) == 1
        driver.note(decision(batch))
    with pytest.raises(OwnershipError, match="does not hold the decision of batch 4"):
        started(kept, planned=3)


def test_the_note_of_one_that_got_further_stays(kept: CheckpointStore) -> None:
    """A driver of the term before, late in its batch, removes nothing that says more."""
    ahead = started(kept)
    ahead.note(decision(7))
    behind = started(kept, planned=7)
    behind.note(decision(6))
    assert notes(kept) == 2
    with pytest.raises(OwnershipError, match="does not hold the decision of batch 7"):
        started(kept, planned=6)


def test_a_note_that_is_removed_between_listing_and_reading_hides_no_other(
    kept: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older copy of the checkpoint would be let in while the pipeline goes on elsewhere."""
    started(kept).note(decision(1))
    running, listed = started(kept, planned=1), kept.list

    def interrupted(prefix: str) -> object:
        found = listed(prefix)
        monkeypatch.setattr(kept, "list", listed)
        running.note(decision(2))
        return found

    monkeypatch.setattr(kept, "list", interrupted)
    with pytest.raises(OwnershipError, match="does not hold the decision of batch 2"):
        started(kept, planned=1)
