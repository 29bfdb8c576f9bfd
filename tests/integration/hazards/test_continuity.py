"""A batch begins where the newest promise ended, whatever Spark was told to skip."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable

import pytest

from airflow_eos.errors import ContinuityError, EosError, OwnershipError
from airflow_eos.recovery import execute_recovery, plan_recovery
from tests.integration.hazards.direct import Direct


def skipped(direct: Direct, batch: int) -> None:
    """What Spark's ``repartition(checkpoint, n, enforce_exactly_once_sink=False)`` writes.

    The failed batch counts as complete, and a control batch after it ends where the one before did.
    """
    folder = direct.checkpoint
    for name in (batch, batch + 1):
        (folder / f"commits/{name}").write_bytes((folder / f"commits/{batch - 1}").read_bytes())
    before = (folder / f"offsets/{batch - 1}").read_bytes()
    (folder / f"offsets/{batch + 1}").write_bytes(before)
    direct.delivered = batch + 2


def died_in_batch_1(direct: Direct, die_at: Callable[[str], None], place: str) -> None:
    direct.feed_numbers(50)
    direct.run()
    direct.feed_numbers(50)
    die_at(place)
    with pytest.raises(RuntimeError, match=f"failpoint {place}"):
        direct.run()
    die_at("")


@pytest.mark.long
@pytest.mark.parametrize("recovers", [False, True], ids=["open", "committed by a recovery"])
def test_a_promised_batch_that_was_skipped_is_refused_and_the_advice_leads_on(
    direct, die_at, recovers
) -> None:
    died_in_batch_1(direct, die_at, "decided")
    kafka = {"bootstrap.servers": direct.bootstrap}
    if recovers:
        execute_recovery(str(direct.checkpoint), kafka, force=True)
    skipped(direct, 1)
    said = r'batch 3 would begin at \{"in": \{"0": 1000\}\}.*ended with batch 1 at .*2000'
    with pytest.raises(ContinuityError, match=said) as refused:
        direct.run()
    refusal = plan_recovery(str(direct.checkpoint), kafka).refusal
    assert refusal is not None
    assert "batch 3 would begin" in refusal
    if not recovers:
        with pytest.raises(EosError, match="batch 3 would begin"):
            execute_recovery(str(direct.checkpoint), kafka, force=True)
        assert len(direct.open_transactions()) == 3, "what was promised is not aborted"
    [remedy] = refused.value.remedies
    for path in re.findall(r"(?:offsets|commits)/\d+", remedy.change):
        shutil.move(direct.checkpoint / path, direct.folder / path.replace("/", "."))
    direct.delivered = 1
    direct.run()
    direct.assert_exactly_once()


@pytest.mark.long
def test_a_batch_that_nobody_promised_may_be_skipped_and_is_read_again(direct, die_at) -> None:
    died_in_batch_1(direct, die_at, "prepared")
    skipped(direct, 1)
    direct.batches.insert(1, direct.batches[1])  # batch 3 reads what batch 1 would have
    direct.batches.insert(1, direct.batches[1])
    direct.delivered = 3
    direct.run()
    assert sorted(direct.visible()) == sorted(
        row for frame in direct.batches[:2] for task in frame.tasks for row in task
    )
    assert direct.open_transactions() == []


def test_offsets_that_go_past_a_promise_are_refused(direct) -> None:
    """As an entry that was copied from elsewhere: rows between the two would be lost."""
    direct.feed_numbers(50)
    direct.run()
    folder = direct.checkpoint
    ahead = (folder / "offsets/0").read_text().replace("1000", "9000")
    (folder / "offsets/1").write_text(ahead)
    (folder / "commits/1").write_bytes((folder / "commits/0").read_bytes())
    with pytest.raises(ContinuityError, match=r"batch 2 would begin at .*9000"), direct.started():
        pass


@pytest.mark.long
def test_a_control_batch_after_a_drain_is_let_in(direct) -> None:
    direct.feed_numbers(50)
    direct.run()
    folder = direct.checkpoint
    for log in ("offsets", "commits"):
        (folder / f"{log}/1").write_bytes((folder / f"{log}/0").read_bytes())
    direct.batches.append(direct.batches[0])  # stands for batch 1, which reads nothing
    direct.feed_numbers(50)
    direct.delivered = 2
    direct.run()
    direct.batches.pop(1)
    direct.assert_exactly_once()


@pytest.mark.long
@pytest.mark.parametrize(
    ("delivered", "error"), [(2, ContinuityError), (1, OwnershipError)], ids=["one stands", "none"]
)
def test_the_newest_decision_was_lost_and_the_advice_is_no_other_hazard_s(
    direct, die_at, delivered, error
) -> None:
    """Complete, delivered, and its decision is gone: where the next one begins is not proven."""
    for _ in range(delivered):
        direct.feed_numbers(30)
    direct.run()
    direct.feed_numbers(30)
    die_at("prepared")
    with pytest.raises(RuntimeError, match="failpoint prepared"):
        direct.run()
    die_at("")
    lost = direct.checkpoint / f"eos/decisions/{delivered - 1}"
    shutil.move(lost, direct.folder / "copy")
    kafka = {"bootstrap.servers": direct.bootstrap}
    with pytest.raises(error, match="decision was lost") as refused:
        direct.run()
    assert "repartition" not in str(refused.value)
    assert "decision was lost" in (plan_recovery(str(direct.checkpoint), kafka).refusal or "")
    assert refused.value.remedies[0].change.startswith(f"put eos/decisions/{delivered - 1} back")
    shutil.move(direct.folder / "copy", lost)
    direct.run()
    direct.assert_exactly_once()
