"""What Flink's checkpoint promises, by its own bytes, and what becomes of what Flink left open."""

from __future__ import annotations

import json
import random
import struct
from contextlib import suppress

import pytest
from msgspec.structs import replace

from airflow_eos.errors import CheckpointError, CheckpointFormatError, DecisionNeededError
from airflow_eos.kafka.transactions import hanging
from airflow_eos.kafka.transactions.coordinator import EndResult
from airflow_eos.kafka.transactions.identity import OpenTransaction, TransactionIdentity
from airflow_eos.kafka.transactions.listing import HangingTransaction
from airflow_eos.ops.flink import recover
from airflow_eos.ops.flink.recover import _read, _with_list, recover_flink
from airflow_eos.ops.flink.state import (
    COMMITTER,
    CoordinatorState,
    FlinkCheckpoint,
    ForeignAction,
    make_plan,
    read_checkpoint,
    read_metadata,
)
from tests.support.flink_bytes import PROMISED, RECORDED, SERIALIZED, copy_to

METADATA = (SERIALIZED / "_metadata").read_bytes()
BESIDE = (SERIALIZED / "state-file").read_bytes()
NAMES = ["_metadata", "_metadata-4", "_metadata-5", "_savepoint"]
JOBS = sorted(file.parent for file in RECORDED.glob("*/recording.json"))


def read(data: bytes, beside: bytes = BESIDE):
    def file(name: str) -> bytes:
        assert name.isprintable()
        assert not {"/", "\\"} & set(name)
        return beside

    return read_checkpoint(data, file)


@pytest.mark.parametrize("name", NAMES)
def test_each_version_of_the_metadata_and_a_savepoint_say_what_is_promised(name):
    found = read((SERIALIZED / name).read_bytes())
    assert (found.number, found.promised, found.prefixes) == (7, PROMISED, ("etl",))


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_of_a_killed_job_the_transactions_that_it_left_prepared_are_promised(job):
    told = json.loads((job / "recording.json").read_text())
    found = read((job / "_metadata").read_bytes())
    assert (found.number, found.prefixes) == (told["checkpoint"], (told["prefix"],))
    assert [list(struct_of(each)) for each in found.promised] == told["commits"]


def struct_of(identity: TransactionIdentity) -> tuple[str, int, int]:
    return identity.transactional_id, identity.producer_id, identity.producer_epoch


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_ends_too_early_anywhere_is_refused(name):
    whole = (SERIALIZED / name).read_bytes()
    for length in range(len(whole)):
        with pytest.raises(CheckpointFormatError):
            read(whole[:length])


def test_a_file_beside_that_ends_too_early_is_refused():
    [offset] = [s.offsets for s in read_metadata(METADATA)[1] if s.name == COMMITTER and s.file]
    for length in range(len(BESIDE)):
        with pytest.raises(CheckpointFormatError):
            read(METADATA, BESIDE[:length])
    assert offset[0] < len(BESIDE)


def test_bytes_after_the_end_are_refused():
    with pytest.raises(CheckpointFormatError, match="1 bytes more"):
        read(METADATA + b"\0")


@pytest.mark.parametrize("huge", [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0"])
def test_no_length_is_believed_that_does_not_fit(huge):
    for place in range(len(METADATA) - 4):
        # never another error, and never memory for what is not there
        with suppress(CheckpointFormatError):
            read(METADATA[:place] + huge + METADATA[place + 4 :])


def test_a_promise_is_never_overlooked_whichever_byte_is_wrong():
    """A transaction that is not seen to be promised would be aborted: rows are lost."""
    rng = random.Random(7)
    for _ in range(3000):
        place = rng.randrange(len(METADATA))
        bad = bytearray(METADATA)
        bad[place] = rng.randrange(256)
        try:
            found = read(bytes(bad))
        except CheckpointFormatError:
            continue
        assert len(found.promised) == 2, place


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b"\x49\x60\x67\x2d\0\0\0\6", b"\x49\x60\x67\x2d\0\0\0\7", "version 7"),
        (b"\x49\x60\x67\x2d", b"PK\3\4", "expected 0x4960672d"),
        (b"\xb9\x1f\x25\x2c", b"\xb9\x1f\x25\x2d", "expected 0xb91f252c"),
        (struct.pack(">hq", 5, 4000), struct.pack(">hq", -1, 4000), "expected Kafka's"),
        (b"\x06\x00\x0astate-file", b"\x06\x00\x0a../../file", "a name in the checkpoint's"),
        (b"streaming_committer_raw_states", b"streaming_committer_raw_statez", "by no committer"),
    ],
)
def test_what_is_not_known_is_refused_with_what_was_found(old, new, said):
    assert old in METADATA
    with pytest.raises(CheckpointFormatError, match="Nothing was done") as refused:
        read(METADATA.replace(old, new))
    assert said in str(refused.value)


def test_a_request_that_flink_has_ended_is_no_promise_and_not_known():
    raw = struct.pack(">hqH", 5, 4000, 7) + b"etl-0-7" + struct.pack(">ii", 0, 0)
    assert raw in METADATA
    with pytest.raises(CheckpointFormatError, match="a request in state 3"):
        read(METADATA.replace(raw, raw[:-4] + struct.pack(">i", 3)))


# --- What becomes of each transaction that Flink left; and which checkpoints are asked at all -----


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


def test_a_marker_that_a_broker_leaves_out_is_written_before_it_is_said_to_have_ended(monkeypatch):
    """Flink takes the id again: its next commit would show readers the aborted rows, too."""
    made = plan((opened("etl-0-7", 4000, 5), "Flink"), (opened("etl-0-8", 4001, 2), "Flink"))
    left = {HangingTransaction("out", 0, 9, each, n, 0, 1) for each, n in ((4000, 5), (4001, 2))}
    written = []
    monkeypatch.setattr(recover, "_require_quiet", lambda *_: None)
    monkeypatch.setattr(
        recover, "end_transactions", lambda _, ids, **_how: dict.fromkeys(ids, EndResult.DONE)
    )
    monkeypatch.setattr(
        hanging,
        "open_in_partitions",
        lambda _, places, __: {e for e in left if ("out", 0) in places},
    )
    monkeypatch.setattr(hanging, "not_ended_yet", lambda *_, **_how: frozenset())
    monkeypatch.setattr(
        hanging, "end_hanging", lambda _, e, commit, **_how: written.append((e.producer_id, commit))
    )
    recover_flink(None, made)  # type: ignore[arg-type]  # Kafka is not asked
    assert written == [(4000, True), (4001, False)]


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
