"""What becomes of each transaction that Flink left; and which checkpoints are asked at all."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from airflow_eos.errors import CheckpointError, CheckpointFormatError, DecisionNeededError
from airflow_eos.foreign.flink import CoordinatorState, FlinkCheckpoint, ForeignAction, make_plan
from airflow_eos.foreign.recover import _read, _with_list, recover_flink
from airflow_eos.kafka.transactions.identity import OpenTransaction, TransactionIdentity
from tests.support.flink_bytes import copy_to

PROMISE = TransactionIdentity("etl-0-7", 4000, 5)


def opened(name: str, producer: int = 1, epoch: int = 0) -> OpenTransaction:
    return OpenTransaction(name, producer, epoch, 1, 60_000, (("out", 0),))


def plan(*transactions, told=None, prefixes=("etl",), raised=(0,)):
    checkpoint = FlinkCheckpoint(7, (PROMISE,), ("etl",))
    return make_plan("/c", checkpoint, prefixes, dict(transactions), told or {}, raised)


def only(made) -> tuple[ForeignAction, str]:
    [step] = made.steps
    return step.action, step.reason


def test_what_is_promised_and_open_is_committed():
    assert only(plan((opened("etl-0-7", 4000, 5), "Flink")))[0] is ForeignAction.COMMIT


def test_a_later_transaction_under_a_promised_id_is_not_the_promised_one():
    made = plan(
        (opened("etl-0-7", 4000, 6), "Flink"),
        told={"etl-0-7": CoordinatorState("Ongoing", 4000, 6)},
    )
    assert {step.action for step in made.steps} == {ForeignAction.LOST, ForeignAction.ABORT}
    assert made.of(ForeignAction.ABORT)[0].producer_epoch == 6


def test_what_is_open_and_not_promised_is_aborted_where_its_form_is_flinks():
    actions = {
        "etl-0-8": ForeignAction.ABORT,
        "etl-12-1": ForeignAction.ABORT,
        "etl-eu-0-8": ForeignAction.LEAVE,
        "etl-0-8-1": ForeignAction.LEAVE,
        "etl-eos-0-8": ForeignAction.LEAVE,
        "etl": ForeignAction.LEAVE,
    }
    told = {"etl-0-7": CoordinatorState("CompleteCommit", 4000, 5)}
    made = plan(*((opened(name), "another") for name in actions), told=told)
    found = {step.transactional_id: step.action for step in made.steps}
    assert found == actions | {"etl-0-7": ForeignAction.COMMITTED}


def test_of_a_prefix_that_nobody_named_nothing_is_ended():
    assert only(plan(prefixes=("other",)))[0] is ForeignAction.LEAVE


@pytest.mark.parametrize(
    ("told", "action"),
    [
        (None, ForeignAction.LOST),
        (CoordinatorState("CompleteCommit", 4000, 5), ForeignAction.COMMITTED),
        (CoordinatorState("CompleteCommit", 4000, 6), ForeignAction.LOST),
        (CoordinatorState("PrepareCommit", 4000, 5), ForeignAction.COMMITTED),
        (CoordinatorState("CompleteAbort", 4000, 6), ForeignAction.LOST),
        (CoordinatorState("PrepareAbort", 4000, 5), ForeignAction.LOST),
        (CoordinatorState("Empty", 4000, 6), ForeignAction.LOST),
        (CoordinatorState("CompleteCommit", 4001, 5), ForeignAction.LOST),
        (CoordinatorState("CompleteCommit", 4000, 9), ForeignAction.LOST),
        (CoordinatorState("Dead", 4000, 5), ForeignAction.LOST),
    ],
)
def test_a_promise_that_is_not_open_is_committed_only_if_its_coordinator_says_so(told, action):
    assert only(plan(told={} if told is None else {"etl-0-7": told}))[0] is action


@pytest.mark.parametrize(
    ("raised", "action"),
    [((0,), ForeignAction.LOST), ((0, 1), ForeignAction.COMMITTED)],
    ids=["whoever took its id", "its own end, with transaction version 2"],
)
def test_what_another_committed_under_the_id_of_a_promise_is_not_the_promise(raised, action):
    """A restored job aborts it by taking its id, which raises the epoch, and commits its own."""
    told = CoordinatorState("CompleteCommit", 4000, 6)
    made = plan(told={"etl-0-7": told}, raised=raised)
    assert only(made)[0] is action


def test_where_a_promise_is_lost_nothing_is_done_before_a_person_decides():
    made = plan((opened("etl-0-8"), "Flink"))
    with pytest.raises(DecisionNeededError, match="--give-up-lost") as refused:
        recover_flink(None, made)  # type: ignore[arg-type]  # Kafka is not asked
    assert len(refused.value.remedies) == 2


def test_of_ten_thousand_that_are_open_a_person_is_shown_the_oldest_and_how_many_more():
    many = [replace(opened(f"etl-0-{n}"), started_at_ms=n) for n in range(10_000)]
    said = str(_with_list(CheckpointFormatError("Not read."), many[::-1]))
    assert len(said) < 10_000
    assert "etl-0-0 " in said
    assert "and 9950 more" in said


def test_only_the_newest_completed_checkpoint_of_a_job_is_asked(tmp_path, monkeypatch):
    job = tmp_path / "checkpoints" / "0123abcd"
    old = copy_to(job, 7)
    assert _read(str(old), None).number == 7
    assert _read(f"{old}/_metadata", None).number == 7
    (job / "chk-8").mkdir()  # begun, and not complete
    assert _read(str(old), None).number == 7
    copy_to(job, 12)
    with pytest.raises(CheckpointError, match="chk-12 is") as refused:
        _read(str(old), None)
    assert f"{job}/chk-12" in str(refused.value)
    monkeypatch.chdir(job)
    for by_another_name in ("chk-7", "./chk-7/", f"file://{old}/_metadata"):
        with pytest.raises(CheckpointError, match="chk-12 is"):
            _read(by_another_name, None)


def test_a_folder_without_metadata_is_no_completed_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="no completed checkpoint"):
        _read(str(tmp_path), None)


def test_a_file_that_the_metadata_names_must_be_there(tmp_path):
    folder = copy_to(tmp_path / "job", 7)
    (folder / "state-file").unlink()
    with pytest.raises(CheckpointError, match="lacks state-file"):
        _read(str(folder), None)
