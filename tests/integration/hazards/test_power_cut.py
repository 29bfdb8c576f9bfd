"""A power cut leaves files of Spark's empty: the pipeline goes on by itself.

Without a JVM: it judges what is put back. What is synced:
tests/unit/core/checkpoint/test_power_cut.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_eos.errors import CheckpointFormatError
from airflow_eos.ops.doctor import DoctorRequest, examine
from airflow_eos.ops.supervision.preflight import require_prefix_free
from airflow_eos.recovery import execute_recovery, plan_recovery
from tests.integration.hazards.direct import Direct

pytestmark = pytest.mark.proof


def died(direct: Direct, die_at: Callable[[str], None], place: str) -> None:
    die_at(place)
    with pytest.raises(RuntimeError, match=f"failpoint {place}"):
        direct.run()
    die_at("")


def files_of_spark(checkpoint: Path) -> list[Path]:
    return [f for f in checkpoint.rglob("*") if f.is_file() and "eos" not in f.parts]


def recovered(direct: Direct) -> None:
    """``plan`` says what is to be mended; ``recover`` ends what is open, and mends what it may."""
    kafka = {"bootstrap.servers": direct.bootstrap}
    assert plan_recovery(str(direct.checkpoint), kafka).refusal is None
    execute_recovery(str(direct.checkpoint), kafka, force=True).require_complete()


RECOVERS = pytest.mark.parametrize(
    "recovers",
    [
        pytest.param(True, id="a recovery, then a start"),
        pytest.param(False, id="a start", marks=pytest.mark.proof),
    ],
)


@RECOVERS
@pytest.mark.parametrize(
    ("place", "path"),
    [("decided", "offsets/1"), ("prepared", "offsets/1"), ("settled", "commits/1")],
    ids=["promised", "prepared", "settled"],
)
def test_the_newest_entry_is_damaged(direct, die_at, place, path, recovers) -> None:
    direct.feed_numbers(50)
    direct.run()
    direct.feed_numbers(50)
    died(direct, die_at, place)
    (direct.checkpoint / path).write_bytes(b"")
    if recovers:
        recovered(direct)
    direct.run()
    direct.assert_exactly_once()


@pytest.mark.parametrize("place", ["decided", "prepared"])
@RECOVERS
def test_every_file_of_sparks_is_empty(direct, die_at, place, recovers) -> None:
    for _ in range(2):
        direct.feed_numbers(30)
    direct.run()
    direct.feed_numbers(30)
    died(direct, die_at, place)
    for file in files_of_spark(direct.checkpoint):
        file.write_bytes(b"")
    if recovers:
        recovered(direct)
    with direct.started():
        pass
    # Where nothing is known of batch 2, batch 1 is run again, which is settled.
    direct.delivered = max(int(f.name) for f in (direct.checkpoint / "offsets").glob("[0-9]*"))
    direct.run()
    direct.delivered = 3
    direct.assert_exactly_once()


@RECOVERS
def test_the_newest_entry_is_empty_and_the_name_of_the_commit_before_was_lost(
    direct, die_at, recovers
) -> None:
    """They are in two folders, and neither was synced: the one name may outlive the other."""
    for _ in range(2):
        direct.feed_numbers(30)
    direct.run()
    direct.feed_numbers(30)
    died(direct, die_at, "prepared")
    (direct.checkpoint / "offsets/2").write_bytes(b"")
    (direct.checkpoint / "commits/1").unlink()
    if recovers:
        recovered(direct)
    with direct.started():
        pass
    assert not (direct.checkpoint / "offsets/2").exists()
    direct.delivered = 1  # run again, and settled
    direct.run()
    direct.assert_exactly_once()


def test_the_newest_entry_of_a_promise_was_removed_by_hand(direct, die_at) -> None:
    """As an error used to advise."""
    direct.feed_numbers(30)
    direct.run()
    direct.feed_numbers(30)
    died(direct, die_at, "decided")
    (direct.checkpoint / "offsets/1").unlink()
    recovered(direct)
    direct.run()
    direct.assert_exactly_once()


@pytest.mark.parametrize(
    ("place", "left"),
    [("prepared", b""), ("decided", b"{}"), ("settled", None)],
    ids=["empty", "of no source", "missing"],
)
def test_where_the_first_batch_began_is_lost_and_all_who_are_asked_say_so(
    direct, die_at, place, left
) -> None:
    """A start, a plan, a recovery, the doctor and a preflight; what they advise leads on."""
    direct.feed_numbers(50)
    began = direct.checkpoint / "sources/0/0"
    began.parent.mkdir(parents=True)
    began.write_bytes(b'\0v1\n{"in":{"0":0}}')
    died(direct, die_at, place)
    began.unlink() if left is None else began.write_bytes(left)
    kafka, said = {"bootstrap.servers": direct.bootstrap}, "where the first batch began is lost"
    assert said in (plan_recovery(str(direct.checkpoint), kafka).refusal or "")
    asked = DoctorRequest(
        str(direct.checkpoint), settings=direct.settings, prefix=direct.prefix, rounds=1
    )
    lines = {line.what: line for line in examine(asked)}
    for line in (lines[f"prefix {direct.prefix}"], lines["participants"]):
        assert (line.verdict, said in line.found) == ("fail", True)
    for asks in (
        lambda: execute_recovery(str(direct.checkpoint), kafka, force=True),
        lambda: require_prefix_free(direct.settings, direct.prefix, direct.store),
        direct.run,
    ):
        with pytest.raises(CheckpointFormatError, match=said) as refused:
            asks()
    assert len(direct.store.list("eos/drivers")) == 1, "refused before the term is taken"
    [remedy] = refused.value.remedies
    assert remedy.change.startswith("move the folder sources/0 out of ")
    began.parent.rename(direct.folder / "away")
    direct.run()
    direct.assert_exactly_once()
