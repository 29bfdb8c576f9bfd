"""The decision log and the rulings: what they record, how large, how long, and what is refused."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import msgspec
import pytest

from airflow_eos.core.checkpoint import CheckpointStore, Decision, DecisionLog, Verdict
from airflow_eos.core.checkpoint.backend import decision_path
from airflow_eos.core.checkpoint.rulings import read_rulings, resolve, skip_input, skipped_input
from airflow_eos.core.protocol.decision import Outcome, PreparedWork, WorkIdentity, encode
from airflow_eos.core.protocol.participant import decision_lost
from airflow_eos.errors import (
    CheckpointFormatError,
    ConfigurationError,
    DecisionNeededError,
    StoreError,
    SupersededError,
)
from airflow_eos.kafka.sink import KafkaSink
from airflow_eos.kafka.transactions.identity import (
    OffsetRange,
    PreparedTransaction,
    TransactionIdentity,
    as_work,
    belongs_to_prefix,
    named,
    transactional_id_of,
)
from tests.support.pipelines import commit_of
from tests.unit.core.recovery.facts_of import commit, prepared


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
    "name",
    [
        *("x.json", "1", "01.json", "0.json", "-1.json", "1.json.bak", "1.JSON", "\u0661.json"),
        "1234567890.json",
    ],
)
def test_a_foreign_file_name_is_refused(log, store, make_decision, name):
    log.record(make_decision(7))
    store.put(f"eos/decisions/7/{name}", b"{}")
    with pytest.raises(CheckpointFormatError, match="is foreign"):
        log.of_batch(7)


@pytest.mark.parametrize("attempts", [[1, 3], [2]], ids=["between", "at the front"])
def test_a_gap_of_attempts_is_refused(log, store, make_decision, attempts):
    for attempt in attempts:
        store.put(decision_path(7, attempt), encode(make_decision(7, attempt)))
    with pytest.raises(CheckpointFormatError, match=re.escape(f"holds attempts {attempts}")):
        log.of_batch(7)


@pytest.mark.parametrize("kept", [0, 1, 40, -2])
def test_a_truncated_decision_is_refused(log, store, make_decision, kept):
    store.put(decision_path(7, 1), encode(make_decision(7))[:kept])
    with pytest.raises(CheckpointFormatError, match=r"7/1\.json holds \d+ bytes that are not JSON"):
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
        ({"attempt": 8}, "copied or renamed"),
        ({"batch_id": 6}, "copied or renamed"),
        ({"format_version": 9}, "format version 9"),
    ],
)
def test_a_decision_that_contradicts_itself_or_its_place_is_refused(
    log, store, make_decision, fields, message
):
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


# --- Two drivers, or a driver and a recovery: exactly one decides ---------------------------------


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


# --- A decision of many tasks: notes/scale.md reckons with these sizes ----------------------------


def work(task: int, partitions: int) -> PreparedWork:
    transaction = PreparedTransaction(
        transactional_id=f"orders-etl-{task}-0",
        producer_id=4000 + task,
        producer_epoch=3,
        written=tuple(
            OffsetRange("orders.clean", each, 12_345_678, 12_345_690) for each in range(partitions)
        ),
        rows=1000,
        fingerprint="0123456789abcdef" * 2,
        opened_at_ms=1_795_000_000_000,
        timeout_ms=900_000,
    )
    return as_work(transaction, "sink")


def decision(tasks: int, partitions: int) -> Decision:
    return commit_of(9, *(work(task, partitions) for task in range(tasks)), decided_by="a test")


def test_ten_thousand_tasks_that_each_write_one_partition_are_three_megabytes(tmp_path: Path):
    large = decision(10_000, 1)
    log = DecisionLog(CheckpointStore.open(tmp_path))
    assert 2_500_000 < len(encode(large)) < 3_000_000
    assert log.record(large)
    assert not log.record(decision(1, 1)), "the first one stands"
    assert log.of_batch(9) == (large,)


def test_each_further_partition_of_a_task_costs_75_bytes():
    few, many = len(encode(decision(100, 1))), len(encode(decision(100, 101)))
    assert 65 < (many - few) / (100 * 100) < 80


# --- Decisions go with Spark's own retention, at a cost that does not grow ------------------------


def fill(store, make_decision, batches) -> None:
    for batch_id in batches:
        store.put(decision_path(batch_id, 1), encode(make_decision(batch_id)))


def standing(store) -> list[int]:
    return sorted(int(name) for name in store.folders("eos/decisions"))


def test_older_batches_go_and_younger_ones_stay(store, make_decision):
    fill(store, make_decision, [0, 1, 2, 9, 10, 11])
    assert DecisionLog(store).prune(10) == 4
    assert standing(store) == [10, 11]


def test_nothing_goes_below_the_first_batch(store, make_decision):
    fill(store, make_decision, [0, 1])
    log = DecisionLog(store)
    assert [log.prune(-100), log.prune(-99), log.prune(0)] == [0, 0, 0]
    assert log.prune(1) == 1
    assert standing(store) == [1]


def test_every_attempt_of_a_batch_goes(store, make_decision):
    for attempt in (1, 2, 3):
        store.put(decision_path(4, attempt), encode(make_decision(4, attempt)))
    store.put("eos/decisions/4/.4.json.tmp", b"half")
    assert DecisionLog(store).prune(5) == 1
    assert standing(store) == []
    assert store.delete_folder("eos/decisions/4") is False


def test_a_folder_that_is_not_a_batch_is_left_alone(store, make_decision):
    fill(store, make_decision, [1])
    store.put("eos/decisions/backup/1.json", b"{}")
    DecisionLog(store).prune(100)
    assert list(store.folders("eos/decisions")) == ["backup"]


def test_pruning_again_finds_nothing_and_going_back_does_not_forget(store, make_decision):
    fill(store, make_decision, range(6))
    log = DecisionLog(store)
    assert [log.prune(3), log.prune(3), log.prune(1), log.prune(4)] == [3, 0, 0, 1]


def test_a_jump_over_many_batches_misses_none(store, make_decision):
    fill(store, make_decision, [0, 3, 50, 5_000])
    log = DecisionLog(store)
    assert log.prune(1) == 1
    assert log.prune(1_000_000) == 3
    assert standing(store) == []


def test_a_call_for_each_batch_costs_two_requests_whatever_the_history(
    troubled, backend, make_decision
):
    fill(troubled, make_decision, range(2_000))
    log = DecisionLog(troubled)
    log.prune(1_000)
    backend.calls.clear()
    for batch_id in range(1_001, 1_101):
        assert log.prune(batch_id) == 1
    assert backend.calls == {"list": 100, "delete": 100}


# --- A person's word about a transaction: once, for ever, and about that transaction only ---------


ONE = WorkIdentity("kafka", "sink", "etl-0-0-7-3")
NEXT = WorkIdentity("kafka", "sink", "etl-0-0-7-4")
PATH = "eos/rulings/etl-0-0-7-3.json"


@pytest.fixture
def ruled_store(tmp_path):
    return CheckpointStore.open(tmp_path)


def test_a_ruling_is_about_one_epoch_only(ruled_store):
    resolve(ruled_store, ONE, Outcome.COMMITTED)

    assert read_rulings(ruled_store, [ONE, NEXT]) == {ONE: Outcome.COMMITTED}


def test_the_same_ruling_again_is_no_error(ruled_store):
    first = resolve(ruled_store, ONE, Outcome.ABORTED)

    assert resolve(ruled_store, ONE, Outcome.ABORTED) == first


def test_the_opposite_ruling_is_refused(ruled_store):
    resolve(ruled_store, ONE, Outcome.COMMITTED)

    with pytest.raises(DecisionNeededError, match="'committed'"):
        resolve(ruled_store, ONE, Outcome.ABORTED)


@pytest.mark.parametrize("outcome", [Outcome.OPEN, Outcome.UNKNOWN])
def test_only_committed_or_aborted_can_be_ruled(ruled_store, outcome):
    with pytest.raises(ConfigurationError):
        resolve(ruled_store, ONE, outcome)


@pytest.mark.parametrize("name", ["../../x-0-0", "a/b-0-0", "", "..", "a\n-0-0"])
def test_a_key_cannot_leave_the_checkpoint(ruled_store, name):
    with pytest.raises(ConfigurationError, match="no key"):
        resolve(ruled_store, WorkIdentity("kafka", "sink", name), Outcome.COMMITTED)


@pytest.mark.parametrize("prefix", [".hidden", "-", "..", "a" * 200, "etl-0-0", "-0-0"])
def test_every_prefix_that_the_sink_takes_can_be_ruled_about(ruled_store, prefix):
    KafkaSink("localhost:9092", "out", prefix)
    transaction = TransactionIdentity(transactional_id_of(prefix, 0, 0), 7, 3)
    one = named(transaction, "sink")
    resolve(ruled_store, one, Outcome.COMMITTED)

    assert read_rulings(ruled_store, [one]) == {one: Outcome.COMMITTED}
    assert belongs_to_prefix(transaction.transactional_id, prefix)


def test_a_ruling_that_was_copied_is_refused(ruled_store):
    resolve(ruled_store, ONE, Outcome.COMMITTED)
    ruled_store.put("eos/rulings/etl-0-0-7-4.json", ruled_store.get(PATH))

    with pytest.raises(DecisionNeededError, match="copied"):
        read_rulings(ruled_store, [NEXT])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"{}",
        b'{"format_version":1}',
        b'{"format_version":2}',
        b'{"format_version":3}',
        b'{"format_version":1,"transaction":{"transactional_id":"a-0-0"}}',
    ],
)
def test_a_garbled_ruling_is_never_guessed_at(ruled_store, data):
    ruled_store.put(PATH, data)

    with pytest.raises(CheckpointFormatError):
        read_rulings(ruled_store, [ONE])
    with pytest.raises(CheckpointFormatError):
        resolve(ruled_store, ONE, Outcome.COMMITTED)


def test_a_ruling_against_what_a_later_commit_proves_is_refused(ruled_store):
    """The first piece was named again: it was lost when that was decided."""
    first, again = prepared(0, content="a"), prepared(0, content="a", epoch=1)
    ruled_store.put("offsets/5", b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1}\n{"in":{"0":9}}')
    log = DecisionLog(ruled_store)
    log.record(commit(first))
    log.record(commit(again, attempt=2))
    with pytest.raises(ConfigurationError, match="'aborted' is proven") as refused:
        resolve(ruled_store, first.identity, Outcome.COMMITTED)
    assert refused.value.remedies[0].start
    assert read_rulings(ruled_store, [first.identity]) == {}
    assert resolve(ruled_store, again.identity, Outcome.COMMITTED).outcome is Outcome.COMMITTED


SKIPPED = "eos/rulings/input/orders/3/10-19.json"


def test_offsets_that_are_stepped_over_are_told_of_the_topics_that_are_read_and_of_no_other(
    ruled_store,
):
    assert skipped_input(ruled_store, ["orders"]) == ()
    first = skip_input(ruled_store, "orders", 3, 10, 19, ruled_by="ann")
    hidden = skip_input(ruled_store, ".orders", 0, 0, 0, ruled_by="ann")
    assert ruled_store.get(SKIPPED) is not None
    assert skip_input(ruled_store, "orders", 3, 10, 19, ruled_by="bob") == first, (
        "it stands for ever"
    )
    assert skipped_input(ruled_store, ["orders"]) == (first,)
    assert skipped_input(ruled_store, [".orders", "orders"]) == (hidden, first)


@pytest.mark.parametrize("place", ["orders/3/10-29", "orders/4/10-19", "other/3/10-19"])
def test_offsets_ruled_elsewhere_are_not_stepped_over(ruled_store, place):
    skip_input(ruled_store, "orders", 3, 10, 19, ruled_by="ann")
    ruled_store.put(f"eos/rulings/input/{place}.json", ruled_store.get(SKIPPED))
    with pytest.raises(DecisionNeededError, match="copied"):
        skipped_input(ruled_store, ["orders", "other"])


@pytest.mark.parametrize("data", [b"", b"{", b'{"format_version":1}', b'{"format_version":2}'])
def test_a_garbled_ruling_about_the_input_is_never_guessed_at(ruled_store, data):
    ruled_store.put(SKIPPED, data)
    with pytest.raises(CheckpointFormatError):
        skipped_input(ruled_store, ["orders"])
