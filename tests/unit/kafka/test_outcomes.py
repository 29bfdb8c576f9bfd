"""The outcome of a transaction from the log, whoever hides it, and what is done next."""

from __future__ import annotations

import struct
import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import kafka.errors as kafka_errors
import pytest

from airflow_eos.cli.transactions import _show
from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.errors import KafkaError, KafkaUnavailableError, TopicError, TransactionError
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.client.errors import ASK_AGAIN, Deadline, NextStep, next_step
from airflow_eos.kafka.client.offsets import LogEnds
from airflow_eos.kafka.transactions import hanging as markers
from airflow_eos.kafka.transactions import outcomes
from airflow_eos.kafka.transactions.coordinator import TransactionCoordinator
from airflow_eos.kafka.transactions.hanging import end_hanging
from airflow_eos.kafka.transactions.identity import (
    OffsetRange,
    PreparedTransaction,
    TransactionIdentity,
)
from airflow_eos.kafka.transactions.listing import HangingTransaction
from airflow_eos.kafka.transactions.outcomes import Inconclusive, _read
from airflow_eos.ops.blocked import Blocked
from tests.model.wire import VirtualTime
from tests.support.metadata import capable

PRODUCER, EPOCH, WITNESS = 77, 5, 100
PREPARED = PreparedTransaction(
    "t-0-0", PRODUCER, EPOCH, (OffsetRange("out", 0, WITNESS, 109),), 10, "", 0, 60_000
)


def batch(first=WITNESS, rows=10, producer=PRODUCER, epoch=EPOCH, attributes=0x10, count=None):
    return struct.pack(
        ">qiibIhiqqqhii",
        *(first, 49, 0, 2, 0, attributes, rows - 1, 0, 0, producer, epoch, 0),
        rows if count is None else count,
    )


def answer(records=b"", stable=1000, high=1000, aborted=(), code=0):
    entries = [SimpleNamespace(producer_id=p, first_offset=o) for p, o in aborted]
    return SimpleNamespace(
        error_code=code,
        high_watermark=high,
        last_stable_offset=stable,
        aborted_transactions=entries or None,
        records=records,
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (answer(batch()), Outcome.COMMITTED),
        (answer(batch(first=WITNESS - 3)), Outcome.COMMITTED),
        (answer(batch(), aborted=[(PRODUCER, WITNESS)]), Outcome.ABORTED),
        (answer(batch(), aborted=[(9, 50), (PRODUCER, WITNESS - 40)]), Outcome.ABORTED),
        (answer(batch(), aborted=[(PRODUCER, WITNESS + 1)]), Outcome.COMMITTED),
        (answer(batch(), aborted=[(PRODUCER + 1, WITNESS)]), Outcome.COMMITTED),
        (answer(stable=WITNESS), Outcome.OPEN),
        (answer(stable=WITNESS - 50), Outcome.OPEN),
        (answer(batch(), stable=WITNESS + 1), Outcome.COMMITTED),
        (answer(batch(epoch=EPOCH + 1)), Inconclusive.REPLACED),
        (answer(batch(epoch=EPOCH - 1), aborted=[(PRODUCER, WITNESS)]), Inconclusive.REPLACED),
        (answer(batch(producer=-1, epoch=-1, attributes=0)), Inconclusive.REPLACED),
        (answer(batch(count=0)), Outcome.UNKNOWN),
        (answer(batch(count=0), aborted=[(PRODUCER, WITNESS)]), Outcome.UNKNOWN),
        (answer(batch(attributes=0x30)), Inconclusive.REPLACED),
        (answer(batch(first=WITNESS + 1)), Outcome.UNKNOWN),
        (answer(b""), Inconclusive.NOTHING),
        (answer(code=faults.OFFSET_OUT_OF_RANGE), Inconclusive.HIDDEN),
        (answer(high=WITNESS, stable=WITNESS), Inconclusive.HIDDEN),
        (answer(high=WITNESS + 1, stable=WITNESS), Outcome.OPEN),
    ],
)
def test_what_the_log_says(given, expected):
    assert _read(PREPARED, given) is expected


def test_no_answer_is_no_outcome():
    assert _read(PREPARED, None) is None


@pytest.mark.parametrize(
    "error",
    [
        kafka_errors.NotLeaderForPartitionError,
        kafka_errors.UnknownTopicOrPartitionError,
        kafka_errors.OffsetNotAvailableError,
        kafka_errors.FencedLeaderEpochError,
        kafka_errors.KafkaStorageError,
    ],
)
def test_a_leader_that_moves_is_asked_again(error):
    assert _read(PREPARED, answer(code=error.errno)) is None


def test_a_missing_acl_and_a_strange_error_are_errors():
    with pytest.raises(TopicError, match="Read on Topic 'out'"):
        _read(PREPARED, answer(code=faults.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(KafkaError, match="UNKNOWN"):
        _read(PREPARED, answer(code=-1))


# --- next step ------------------------------------------------------------------------------------


TABLE = {
    "NoError": NextStep.DONE,
    "ConcurrentTransactionsError": NextStep.AGAIN,
    "CoordinatorLoadInProgressError": NextStep.AGAIN,
    "CoordinatorNotAvailableError": NextStep.ELSEWHERE,
    "NotCoordinatorError": NextStep.ELSEWHERE,
    # The broker stumbles over its own timeout: found by the chaos suite, history 21000012.
    "UnknownError": NextStep.AGAIN,
    "RequestTimedOutError": NextStep.AGAIN,
    "NetworkExceptionError": NextStep.AGAIN,
    "NotEnoughReplicasError": NextStep.AGAIN,
    "InvalidTxnStateError": NextStep.LOOK,
    "ProducerFencedError": NextStep.LOOK,
    "InvalidProducerEpochError": NextStep.LOOK,
    "InvalidProducerIdMappingError": NextStep.LOOK,
    "TransactionalIdAuthorizationFailedError": None,
    "UnsupportedVersionError": None,
    "InvalidRequestError": None,
}


@pytest.mark.parametrize(("name", "expected"), TABLE.items())
def test_every_answer_of_the_coordinator_has_one_meaning(name, expected):
    assert next_step(getattr(kafka_errors, name).errno) is expected


def test_no_error_is_read_as_done():
    codes = set(kafka_errors.kafka_errors) - {0}
    assert not [code for code in codes if next_step(code) is NextStep.DONE]


def test_an_unheard_of_code_needs_a_person():
    assert next_step(9999) is None


def test_what_kafka_calls_retriable_is_asked_again():
    for code, kind in kafka_errors.kafka_errors.items():
        if issubclass(kind, kafka_errors.RetriableError):
            assert next_step(code) in ASK_AGAIN, kind


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (faults.TOPIC_AUTHORIZATION_FAILED, TopicError),
        (faults.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, TransactionError),
        (faults.CLUSTER_AUTHORIZATION_FAILED, KafkaError),
    ],
)
def test_a_missing_acl_is_named(code, kind):
    error = faults.refusal(code, "while trying", acl="Write on Topic 'orders'")
    assert isinstance(error, kind)
    assert "Write on Topic 'orders'" in str(error)
    assert "AUTHORIZATION_FAILED" in str(error)


def test_a_missing_acl_of_one_id_is_granted_for_all_tasks():
    """Granted as it was named, id by id, it took as many starts as the batch has tasks."""
    code = faults.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    said = str(faults.refusal(code, "while trying", acl="Describe on TransactionalId 'a-eos-0-0'"))
    assert "Write, by the pattern prefixed" in said


class Answers:
    """A coordinator that gives these, then the last for ever."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.cluster = SimpleNamespace(
            coordinators=lambda ids, **_: dict.fromkeys(ids, 1),
            forget_coordinators=lambda _ids: None,
            leaders=lambda _topic, **_: {0: 1, 1: 1},
        )

    def submit(self, _message: Any, **_options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(self._answers.pop(0) if len(self._answers) > 1 else self._answers[0])
        return future


def added(*partitions: int) -> Any:
    found = [SimpleNamespace(partition_index=p, partition_error_code=0) for p in partitions]
    return SimpleNamespace(
        results_by_topic_v3_and_below=[SimpleNamespace(results_by_partition=found)]
    )


def test_a_partition_that_is_in_no_answer_was_not_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows would belong to no transaction that a coordinator knows: they hang (KIP-664)."""
    monkeypatch.setattr(faults, "time", VirtualTime())
    places, ours = [("t", 0), ("t", 1)], TransactionIdentity("etl-eos-0-0", 7, 0)
    partly: Any = Answers(added(0), added(0, 1))
    TransactionCoordinator(partly).add_partitions(ours, places)
    never: Any = Answers(added(0))
    with pytest.raises(KafkaUnavailableError, match="COORDINATOR_NOT_AVAILABLE"):
        TransactionCoordinator(never).add_partitions(ours, places)


def test_an_answer_without_a_state_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "time", VirtualTime())
    state = SimpleNamespace(error_code=0, producer_id=7, producer_epoch=3)
    empty, told = (SimpleNamespace(transaction_states=each) for each in ([], [state]))
    wire: Any = Answers(empty, told)
    assert TransactionCoordinator(wire).holder("a") == TransactionIdentity("a", 7, 3)


def test_a_marker_that_is_answered_for_another_partition_is_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(faults, "time", VirtualTime())

    def written(partition: int) -> Any:
        each = SimpleNamespace(partition_index=partition, error_code=0)
        topic = SimpleNamespace(name="t", partitions=[each])
        return SimpleNamespace(markers=[SimpleNamespace(topics=[topic])])

    wire: Any = Answers(written(1))
    wire.cluster.capabilities = capable
    with pytest.raises(KafkaUnavailableError, match="could not be ended"):
        end_hanging(wire, HangingTransaction("t", 0, 5, 7, 0, 0, 1), commit=False)
    done: Any = Answers(written(1), written(0))
    done.cluster.capabilities = capable
    end_hanging(done, HangingTransaction("t", 0, 5, 7, 0, 0, 1), commit=False)


# --- What is committed is seen: who ends a transaction looks whether readers get past its rows ----


@pytest.mark.parametrize(
    ("first", "last", "stable", "is_behind"),
    [
        (5, 5, 5, True),  # one row, open: the last stable offset is that row itself
        (5, 9, 5, True),
        (5, 9, 9, True),  # the last of them is not seen
        (5, 9, 10, False),
        (5, 9, 11, False),  # as it is behind the marker
    ],
)
def test_a_partition_whose_last_stable_offset_is_not_past_the_rows_is_seen_to(
    monkeypatch: pytest.MonkeyPatch, first: int, last: int, stable: int, is_behind: bool
) -> None:
    seen_to: list[Any] = []
    monkeypatch.setattr(markers, "positions", lambda *_args: {("t", 0): stable})
    for name in ("made_again", "_cut_off", "replaced"):
        monkeypatch.setattr(markers, name, lambda *_args, **_how: set())
    monkeypatch.setattr(
        markers, "require_ended_everywhere", lambda _wire, places, **_how: seen_to.append(places)
    )
    ours = PreparedTransaction("t-0-0", 7, 0, (OffsetRange("t", 0, first, last),), 1, "", 0, 1)
    wire: Any = None
    markers.require_committed_everywhere(wire, [ours])
    assert seen_to == ([{ours.identity: {("t", 0)}}] if is_behind else [])


def test_how_old_a_transaction_is_says_the_clusters_clock_and_not_the_readers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A machine an hour ahead took what was a minute old for one that no coordinator would end."""
    there_ms = time.time_ns() // 1_000_000 - 3_600_000
    young = HangingTransaction("t", 0, 5, 7, 0, 0, last_written_ms=there_ms - 60_000)
    monkeypatch.setattr(markers, "partitions_of", lambda *_: [("t", 0)])
    monkeypatch.setattr(markers, "open_in_partitions", lambda *_: {young})
    monkeypatch.setattr(markers, "cluster_clock_ms", lambda _: there_ms)
    monkeypatch.setattr(markers, "held_by_coordinators", lambda *_, **__: set())
    monkeypatch.setattr(markers, "committed_by_coordinators", lambda *_, **__: {young: False})
    monkeypatch.setattr(markers, "require_all_told", lambda *_, **__: None)
    wire: Any = None
    assert markers.find_hanging(wire, {"t"}, older_than_ms=1_200_000) == ()
    assert markers.find_hanging(wire, {"t"}, older_than_ms=60_000) == (young,)


@pytest.mark.parametrize(
    ("looks", "hangs"),
    [
        ([{"last_written_ms": 1}, {"last_written_ms": 1}], True),
        (
            [
                {"last_written_ms": 1, "last_sequence": 4},
                {"last_written_ms": 1, "last_sequence": 5},
            ],
            False,
        ),
        ([{"last_written_ms": 2**62}, {"last_written_ms": 2**62}], True),
    ],
    ids=["stands still", "writes rows of one time", "rows of a year to come"],
)
def test_what_hangs_is_told_by_what_grows_and_not_by_a_time_that_its_writer_chose(
    monkeypatch: pytest.MonkeyPatch, looks: list[dict[str, Any]], hangs: bool
) -> None:
    seen = [HangingTransaction("t", 0, 5, 7, 0, 0, **look) for look in looks]
    answers = iter(seen)
    monkeypatch.setattr(markers, "partitions_of", lambda *_: [("t", 0)])
    monkeypatch.setattr(markers, "open_in_partitions", lambda *_: {next(answers)})
    monkeypatch.setattr(markers, "cluster_clock_ms", lambda _: 10**12)
    monkeypatch.setattr(markers, "held_by_coordinators", lambda *_, **__: set())
    monkeypatch.setattr(markers, "committed_by_coordinators", lambda _, h, **__: dict.fromkeys(h))
    monkeypatch.setattr(markers, "require_all_told", lambda *_, **__: None)
    wire: Any = None
    assert bool(markers.find_hanging(wire, {"t"}, older_than_ms=1_200_000)) is hangs


def test_where_coordinators_may_leave_some_out_absent_is_not_hanging_however_old_its_rows_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever writes rows with the times of their events looks a year old in a second."""
    last_years = HangingTransaction("t", 0, 5, 7, 0, 0, last_written_ms=0)
    monkeypatch.setattr(markers, "partitions_of", lambda *_: [("t", 0)])
    monkeypatch.setattr(markers, "open_in_partitions", lambda *_: {last_years})
    monkeypatch.setattr(markers, "cluster_clock_ms", lambda _: None)
    monkeypatch.setattr(markers, "held_by_coordinators", lambda *_, **__: set())

    def hidden(*_: Any, **__: Any) -> None:
        raise TransactionError("not all may be described")

    monkeypatch.setattr(markers, "require_all_told", hidden)
    wire: Any = None
    with pytest.raises(TransactionError, match="not all may be described"):
        markers.find_hanging(wire, {"t"}, older_than_ms=1_200_000)


def test_what_nobody_could_tell_is_said_where_nothing_was_found_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _show(Blocked((), ("a group",), ("no broker lists transactions",)))
    said = capsys.readouterr().out
    assert "Not known: no broker lists transactions" in said
    assert "a group" in said


# --- hidden witness -------------------------------------------------------------------------------
# A witness that does not show: waited for where it can come to light, else a person is asked.
#
# What leaders answer is made by hand; tests/integration/kafka/test_copies_that_lag.py has brokers.


WIRE: Any = SimpleNamespace(cluster=SimpleNamespace(find_leaders=lambda _topic: {0: 1}))
HOLDS_IT, ENDS_BEFORE = LogEnds(0, WITNESS + 1), LogEnds(0, WITNESS)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Ask once, where the leader says that its log begins and ends there."""
    grace: dict[Any, Deadline] = {}

    def ask(ends: LogEnds | None) -> Outcome | None:
        monkeypatch.setattr(outcomes, "log_ends", lambda *_given, **_leader: ends)
        return outcomes._hidden(WIRE, PREPARED, grace)

    return ask


@pytest.mark.parametrize("ends", [HOLDS_IT, LogEnds(WITNESS, WITNESS + 1), None])
def test_a_log_that_holds_it_or_a_leader_that_does_not_say_is_asked_again(asked, ends):
    assert asked(ends) is None


def test_what_is_past_retention_nobody_can_tell(asked):
    assert asked(LogEnds(WITNESS + 1, WITNESS + 9)) is Outcome.UNKNOWN


def test_a_log_that_ends_before_it_is_given_time(asked, monkeypatch):
    """It may have been a former leader that answered; UNKNOWN would stand for ever."""
    assert asked(ENDS_BEFORE) is None
    assert asked(ENDS_BEFORE) is None
    monkeypatch.setattr(Deadline, "expired", True)
    assert asked(ENDS_BEFORE) is Outcome.UNKNOWN


def test_the_time_begins_anew_where_the_log_held_it_in_between(asked, monkeypatch):
    assert asked(ENDS_BEFORE) is None
    since = Deadline(0.0)
    monkeypatch.setattr(outcomes, "Deadline", lambda _seconds: since)
    assert asked(HOLDS_IT) is None
    assert asked(ENDS_BEFORE) is Outcome.UNKNOWN, "the deadline of the second time is another one"


@pytest.mark.parametrize(("local", "outcome"), [(True, Outcome.UNKNOWN), (False, None)])
def test_an_empty_answer_of_remote_storage_is_asked_again_and_no_question_for_a_person(
    monkeypatch: pytest.MonkeyPatch, local: bool, outcome: Outcome | None
) -> None:
    asked: list[Any] = []

    def is_local(_wire: Any, *place: Any, leader: int) -> Any:
        asked.append((*place, leader))
        return local

    monkeypatch.setattr(outcomes, "is_local", is_local)
    assert outcomes._of_nothing(WIRE, PREPARED) is outcome
    assert asked == [("out", 0, WITNESS, 1)]
