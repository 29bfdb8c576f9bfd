"""The decision log: what it records, and everything that it refuses to read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import msgspec
import pytest

from airflow_eos.checkpoint import CheckpointStore, DecisionLog, Verdict
from airflow_eos.checkpoint.backend import decision_path
from airflow_eos.errors import CheckpointFormatError, StoreError, SupersededError
from airflow_eos.protocol.decision import encode
from airflow_eos.protocol.participant import decision_lost


@pytest.fixture
def log(store) -> DecisionLog:
    return DecisionLog(store)


def changed(decision, **fields) -> bytes:
    return msgspec.json.encode(msgspec.to_builtins(decision) | fields)


def test_a_batch_without_decisions_has_none(log):
    assert log.of_batch(0) == ()


def test_decisions_come_back_equal_and_by_attempt(log, make_decision):
    abort = make_decision(
        7, 1, verdict=Verdict.ABORT, works=(), offsets=None, reason="by a recovery"
    )
    later = [make_decision(7, attempt) for attempt in range(2, 12)]
    for decision in [abort, *later]:
        assert log.record(decision) is True
    assert log.of_batch(7) == (abort, *later), "attempt 10 comes after 9, not after 1"
    assert log.of_batch(6) == ()


def test_the_second_decision_of_an_attempt_loses(log, make_decision):
    first = make_decision(7)
    assert log.record(first) is True
    assert log.record(make_decision(7)) is False
    assert log.of_batch(7) == (first,)


def test_the_same_decision_sent_again_is_still_ours(log, make_decision):
    decision = make_decision(7)
    assert log.record(decision) is True
    assert log.record(decision) is True


def test_an_attempt_whose_predecessors_were_pruned_is_not_decided(log, make_decision):
    assert log.record(make_decision(7, 2)) is False
    assert log.of_batch(7) == ()


def test_a_sleeper_that_left_a_gap_in_a_batch_that_is_over_is_superseded(log, store, make_decision):
    """Found by the model: it sealed attempt 2 while attempt 1 was being pruned."""
    store.put("offsets/9", b"v1")
    store.put(decision_path(7, 2), encode(make_decision(7, 2)))
    with pytest.raises(SupersededError, match="Batch 7 is over"):
        log.of_batch(7)


@pytest.mark.parametrize("planned", [7, 8])
def test_a_gap_that_no_pruning_can_have_left_is_a_decision_that_was_lost(
    log, store, make_decision, planned
):
    """Found by the model: it was called another driver's doing, and a start advised for ever."""
    store.put(f"offsets/{planned}", b"v1")
    store.put(decision_path(7, 2), encode(make_decision(7, 2)))
    with pytest.raises(CheckpointFormatError, match="A decision was lost") as refused:
        log.of_batch(7)
    assert refused.value.remedies == decision_lost(7)


def test_a_commit_says_which_offsets_it_was_evaluated_for(make_decision):
    with pytest.raises(ValueError, match="which offsets"):
        make_decision(7, offsets=None)


def test_a_lost_reply_of_a_decision_is_looked_up(troubled, backend, make_decision):
    backend.after = [TimeoutError("timed out")]
    decision = make_decision(7)
    assert DecisionLog(troubled).record(decision) is True
    assert DecisionLog(troubled).of_batch(7) == (decision,)


def test_an_unanswered_decision_is_unknown_not_lost(troubled, backend, make_decision):
    backend.before = [TimeoutError("timed out")] * 99
    with pytest.raises(StoreError, match="not known whether"):
        DecisionLog(troubled).record(make_decision(7))


def test_hidden_temporary_files_are_ignored(log, store, make_decision):
    decision = make_decision(7)
    log.record(decision)
    store.put("eos/decisions/7/.2.json.3f2a.tmp", b'{"format_ver')
    store.put("eos/decisions/7/.1.json.crc", b"crc")
    assert log.of_batch(7) == (decision,)


@pytest.mark.parametrize(
    "name", ["x.json", "1", "01.json", "0.json", "-1.json", "1.json.bak", "1.JSON", "\u0661.json"]
)
def test_a_foreign_file_name_is_refused(log, store, make_decision, name):
    log.record(make_decision(7))
    store.put(f"eos/decisions/7/{name}", b"{}")
    with pytest.raises(CheckpointFormatError, match="is foreign"):
        log.of_batch(7)


def test_a_gap_between_attempts_is_refused(log, store, make_decision):
    for attempt in (1, 3):
        store.put(decision_path(7, attempt), encode(make_decision(7, attempt)))
    with pytest.raises(CheckpointFormatError, match=r"holds attempts \[1, 3\]"):
        log.of_batch(7)


def test_a_decision_missing_at_the_front_is_refused(log, store, make_decision):
    store.put(decision_path(7, 2), encode(make_decision(7, 2)))
    with pytest.raises(CheckpointFormatError, match=r"holds attempts \[2\]"):
        log.of_batch(7)


@pytest.mark.parametrize("inside", [{"attempt": 8}, {"batch_id": 6}])
def test_a_decision_in_the_wrong_place_is_refused(log, store, make_decision, inside):
    store.put(decision_path(7, 1), changed(make_decision(7), **inside))
    with pytest.raises(CheckpointFormatError, match="copied or renamed"):
        log.of_batch(7)


@pytest.mark.parametrize("kept", [0, 1, 40, -2])
def test_a_truncated_decision_is_refused(log, store, make_decision, kept):
    store.put(decision_path(7, 1), encode(make_decision(7))[:kept])
    with pytest.raises(CheckpointFormatError, match=r"7/1\.json holds \d+ bytes that are not JSON"):
        log.of_batch(7)


def test_an_unknown_format_version_is_refused(log, store, make_decision):
    store.put(decision_path(7, 1), changed(make_decision(7), format_version=9))
    with pytest.raises(CheckpointFormatError, match="format version 9"):
        log.of_batch(7)


@pytest.mark.parametrize("field", ["works", "reason", "verdict", "nonce", "decided_by", "batch_id"])
def test_a_lost_field_is_refused_even_where_it_has_a_default(log, store, make_decision, field):
    left = msgspec.to_builtins(make_decision(7))
    del left[field]
    store.put(decision_path(7, 1), msgspec.json.encode(left))
    with pytest.raises(CheckpointFormatError, match=f"lacks {field}"):
        log.of_batch(7)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"verdict": "maybe"}, "maybe"),
        ({"batch_id": "7"}, "batch_id"),
        ({"attempt": 1.0}, "attempt"),
        ({"attempt": 0}, "from 0 and from 1"),
        ({"nonce": "short"}, "nonce"),
        ({"colour": "red"}, "colour"),
        ({"verdict": "abort"}, "names no work"),
        ({"verdict": "abort", "works": []}, "gives a reason"),
        ({"works": [{"key": "etl-0-0-7-3"}]}, "kind"),
    ],
)
def test_a_decision_that_contradicts_itself_is_refused(log, store, make_decision, fields, message):
    store.put(decision_path(7, 1), changed(make_decision(7), **fields))
    with pytest.raises(CheckpointFormatError, match=message):
        log.of_batch(7)


@pytest.mark.parametrize("key", ["", "..", "a/b", "a\n", "é", "a" * 251])
def test_a_key_that_is_no_name_is_refused(make_decision, key):
    [work] = make_decision(7).works
    with pytest.raises(ValueError, match="no name"):
        make_decision(7, works=(msgspec.structs.replace(work, key=key),))


def test_work_that_is_named_twice_is_refused(make_decision):
    [work] = make_decision(7).works
    with pytest.raises(ValueError, match="named twice"):
        make_decision(7, works=(work, work))


def test_a_decision_deleted_while_it_is_read_is_refused(troubled, backend, make_decision):
    log = DecisionLog(troubled)
    log.record(make_decision(7))
    backend.reading = [FileNotFoundError("gone")]
    with pytest.raises(CheckpointFormatError, match="was listed and is gone"):
        log.of_batch(7)


# --- test_decision_race ---------------------------------------------------------------------------
# Two drivers, or a driver and a recovery: exactly one decides.


WRITERS = 8


def test_of_eight_threads_exactly_one_decides_each_attempt(tmp_path, make_decision):
    gate = Barrier(WRITERS)

    def race(batch_id: int) -> bool:
        log = DecisionLog(CheckpointStore.open(tmp_path))
        gate.wait()
        return log.record(make_decision(batch_id))

    with ThreadPoolExecutor(WRITERS) as pool:
        for batch_id in range(40):
            assert sum(pool.map(race, [batch_id] * WRITERS)) == 1
    log = DecisionLog(CheckpointStore.open(tmp_path))
    assert all(len(log.of_batch(batch_id)) == 1 for batch_id in range(40))
