"""A part of the open transactions never passes for all, nor a blocked reader for none."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import kafka.errors as kafka_errors
import pytest
from typer.testing import CliRunner

from airflow_eos.cli.app import app
from airflow_eos.errors import KafkaError, KafkaUnavailableError, TransactionError
from airflow_eos.kafka.client import errors as deadline
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.client.messages import ListTransactionsRequest
from airflow_eos.kafka.transactions import listing
from airflow_eos.kafka.transactions.identity import TransactionIdentity
from airflow_eos.kafka.transactions.listing import HangingTransaction
from airflow_eos.ops import blocked
from airflow_eos.ops.blocked import find_blocked, next_step
from airflow_eos.ops.supervision.progress import ends_by
from tests.model.wire import VirtualTime
from tests.support.metadata import capable

LOADING = kafka_errors.CoordinatorLoadInProgressError.errno
DENIED = kafka_errors.TransactionalIdAuthorizationFailedError.errno


class Cluster:
    """Brokers 1 and 2, each with the open transactions that it coordinates.

    ``first`` answers the first round of listing in the broker's place: an error code, or silence.
    """

    def __init__(self) -> None:
        self.held: dict[int, list[str]] = {1: ["etl-eos-0-0"], 2: ["etl-eos-1-0"]}
        self.first: dict[int, int | None] = {}
        self.ended: set[str] = set()
        self.pattern_known = True
        self.unknown_states: list[str] = []
        self.silent_of: list[str] = []
        self.away: list[int] = []
        self.state = "Ongoing"
        self.transaction_version = 1
        self.may_describe_all = True

    @property
    def cluster(self) -> Cluster:
        """It plays the wire and the view of the cluster."""
        return self

    def brokers(self) -> list[int]:
        return [1, 2]

    def coordinators(self, ids: Any, **_options: Any) -> dict[str, int]:
        if not (self.may_describe_all or {"etl-eos-0-0", "etl-eos-1-0"}.issuperset(ids)):
            raise TransactionError("Kafka answered TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53)")
        return {each: next((n for n, held in self.held.items() if each in held), 1) for each in ids}

    def forget_coordinators(self, ids: Any) -> None: ...

    def require_coordinators(self, *, must_be_told: bool = False, timeout_s: float) -> None:
        del must_be_told, timeout_s
        if self.away:
            raise KafkaUnavailableError(f"partitions {self.away} of the log have no leader")

    def highest_version(self, _message: Any) -> int:
        return 2 if self.pattern_known else 1

    def request_many(self, requests: Any, **_options: Any) -> list[Any]:
        return [
            self._list(node)
            if isinstance(message, ListTransactionsRequest)
            else self._tell(message)
            for message, node in requests
        ]

    def _list(self, node: int) -> Any:
        code: int | None = self.first.pop(node, faults.NONE)
        if code is None:
            raise KafkaUnavailableError(f"broker {node} does not answer")
        held = [] if code else self.held[node]
        states = [SimpleNamespace(transactional_id=each, producer_id=7) for each in held]
        return SimpleNamespace(
            error_code=code, transaction_states=states, unknown_state_filters=self.unknown_states
        )

    def _tell(self, message: Any) -> Any:
        return SimpleNamespace(
            transaction_states=[
                SimpleNamespace(
                    transactional_id=each,
                    error_code=faults.NONE,
                    transaction_state="CompleteAbort" if each in self.ended else self.state,
                    producer_id=7,
                    producer_epoch=1,
                    transaction_start_time_ms=0,
                    transaction_timeout_ms=60_000,
                    topics=[],
                )
                for each in message.transactional_ids
                if each not in self.silent_of
            ]
        )


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def listed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    monkeypatch.setattr(deadline, "time", VirtualTime())

    def names(**options: Any) -> list[str]:
        wire: Any = cluster
        return [each.transactional_id for each in listing.list_open(wire, "etl", **options)]

    return names


def test_every_broker_is_asked(listed):
    assert listed() == ["etl-eos-0-0", "etl-eos-1-0"]


@pytest.mark.parametrize("first", [LOADING, None], ids=["loading", "silent"])
@pytest.mark.parametrize("node", [1, 2])
def test_a_broker_that_cannot_tell_yet_is_asked_again(cluster, listed, node, first):
    cluster.first[node] = first
    assert listed() == ["etl-eos-0-0", "etl-eos-1-0"]


def test_brokers_that_stay_silent_are_no_empty_listing(cluster, listed):
    cluster.first = dict.fromkeys(cluster.brokers())
    with pytest.raises(KafkaUnavailableError, match="could not be listed"):
        listed(deadline_s=0.0)


def test_a_missing_acl_is_no_empty_listing(cluster, listed):
    cluster.first[2] = DENIED
    with pytest.raises(TransactionError, match="Describe on TransactionalId"):
        listed()


@pytest.mark.parametrize("pattern_known", [True, False])
def test_a_prefix_that_begins_alike_is_left_alone(cluster, listed, pattern_known):
    """Brokers before 4.1 cannot filter; the ids of ``etl-eu`` are another pipeline's."""
    cluster.pattern_known = pattern_known
    cluster.held[1] += ["etl-eu-eos-0-0", "etl2-eos-0-0", "another-eos-0-0", "etl-eos-0-0"]
    assert listed() == ["etl-eos-0-0", "etl-eos-1-0"]


def test_one_that_ended_since_it_was_listed_is_not_open(cluster, listed):
    cluster.ended.add("etl-eos-1-0")
    assert listed() == ["etl-eos-0-0"]


def test_those_known_to_be_open_are_left_out(listed):
    assert listed(except_known=[TransactionIdentity("etl-eos-0-0", 7, 1)]) == ["etl-eos-1-0"]


def test_who_takes_over_from_a_silent_broker_is_heard_once_more(cluster, listed, monkeypatch):
    """Broker 2 dies unnoticed; its heir answers at first without what it is about to take over."""
    cluster.first[2] = None
    cluster.held[2].remove("etl-eos-1-0")
    monkeypatch.setattr(listing, "wait", lambda _s: cluster.held[1].append("etl-eos-1-0"))
    assert listed() == ["etl-eos-0-0", "etl-eos-1-0"]


def test_once_more_means_all_of_them(cluster, listed, monkeypatch):
    """The second hearing meets a broker that cannot tell: it is asked until it can."""
    cluster.first[2] = None
    cluster.held[2].remove("etl-eos-1-0")

    def taken_over(_s):
        cluster.held[1].append("etl-eos-1-0")
        cluster.first[1] = LOADING

    monkeypatch.setattr(listing, "wait", taken_over)
    assert listed() == ["etl-eos-0-0", "etl-eos-1-0"]


def test_an_id_that_is_in_no_answer_is_not_one_that_was_forgotten(cluster, listed):
    cluster.silent_of = ["etl-eos-1-0"]
    with pytest.raises(KafkaUnavailableError, match="1 ids are moving, or say nothing of them"):
        listed()


def test_a_broker_that_does_not_know_the_state_lists_nothing_and_that_is_no_empty_listing(
    cluster, listed
):
    """KIP-664: it answers without an error, and names what of the question it has passed over."""
    cluster.held = {1: [], 2: []}
    cluster.unknown_states = ["Ongoing"]
    with pytest.raises(TransactionError, match="the state Ongoing, which it does not know"):
        listed()


def test_what_a_partition_of_their_log_without_a_leader_holds_is_not_nothing(cluster, listed):
    """Each broker lists its own, and none says that others are missing."""
    cluster.away = [3]
    with pytest.raises(KafkaUnavailableError, match=r"partitions \[3\] of the log"):
        listed()
    # A batch lists again with the next one.
    assert listed(except_known=[TransactionIdentity("etl-eos-0-0", 7, 1)]) == ["etl-eos-1-0"]
    wire: Any = cluster
    with pytest.raises(KafkaUnavailableError):
        listing.list_lookalikes(wire, "etl")


@pytest.mark.parametrize("may", [True, False])
def test_who_may_not_describe_all_ids_does_not_know_that_one_has_no_coordinator(cluster, may):
    cluster.may_describe_all = may
    wire: Any = cluster
    if may:
        listing.require_all_told(wire)
        return
    with pytest.raises(TransactionError, match="leave out") as refused:
        listing.require_all_told(wire)
    [remedy] = refused.value.remedies
    assert "TransactionalId '*'" in remedy.change


def committed(cluster: Cluster, *epochs: int) -> list[bool | None]:
    wire: Any = cluster
    left = [HangingTransaction("t", 0, 5, 7, epoch, 0, 0) for epoch in epochs]
    return list(listing.committed_by_coordinators(wire, left).values())


@pytest.mark.parametrize(
    ("version", "expected"), [(1, [False, True]), (2, [True, True])], ids=["kept", "raised"]
)
def test_a_commit_by_a_client_of_before_4_0_is_a_commit_on_a_cluster_that_raises_epochs(
    cluster, version, expected
):
    """With EndTxn 4 and below the epoch stays; else its left-out marker would become an abort."""
    cluster.state, cluster.transaction_version = "CompleteCommit", version
    assert committed(cluster, 0, 1) == expected


@pytest.mark.parametrize(
    ("state", "epoch", "expected"),
    [
        ("CompleteCommit", 1, None),  # its client keeps one epoch: this may be one before
        ("CompleteCommit", 0, None),
        ("Ongoing", 1, None),
        ("Ongoing", 0, None),  # it has gone on, and this one may have been committed
        ("CompleteAbort", 0, None),
        ("Empty", 0, None),  # its program was started again since
        ("Empty", 1, False),
    ],
)
def test_what_another_program_left_behind_its_newest_transaction_is_not_taken_for_aborted(
    cluster, state, epoch, expected
):
    """Kafka leaves the marker of a commit out (KAFKA-20734), and its producer goes on elsewhere."""
    cluster.state, cluster.held = state, {1: ["payments"], 2: []}
    assert committed(cluster, epoch) == [expected]


def test_a_state_that_is_not_known_is_none_of_one_that_is_through(cluster):
    cluster.state = "PrepareEpochFence"
    wire: Any = cluster
    ours = TransactionIdentity("etl-eos-0-0", 7, 1)
    assert listing.not_ended_yet(wire, [ours]) == {"etl-eos-0-0"}
    cluster.state = "CompleteAbort"
    assert listing.not_ended_yet(wire, [ours]) == frozenset()


# --- What is said of readers that wait, where brokers do not tell all of it -----------------------


COMMITTED = blocked._committed

PLACE = ("t", 0)
HOUR_MS = 3_600_000
NOW_MS = time.time_ns() // 1_000_000
WRITES = HangingTransaction("t", 0, 5, 7, 0, 0, last_written_ms=NOW_MS)


class Brokers:
    """Partition 0 of "t" is held up at offset 5; what they tell of it is set here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[set[HangingTransaction]] = [{WRITES}]
        self.stable = [5]
        self.states: list[Any] = []
        self.hidden = False
        self.refuses: KafkaError | None = None
        self.first_row_ms = NOW_MS
        settings = {"transaction.max.timeout.ms": "900000"}
        self.wire: Any = SimpleNamespace(
            cluster=SimpleNamespace(capabilities=lambda: capable(settings=settings))
        )
        for name, stand_in in {
            "partitions_of": lambda *_: [PLACE],
            "positions": self._positions,
            "open_in_partitions": lambda *_: self._next(self.opened),
            "transactions_of_producers": self._transactions_of_producers,
            "require_all_told": self._require_all_told,
            "cluster_clock_ms": lambda _: NOW_MS,
            "read_span": self._read,
            "_committed": lambda *_: ({}, (), ()),
        }.items():
            monkeypatch.setattr(blocked, name, stand_in)

    def _next(self, answers: list[Any]) -> Any:
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def _positions(self, *_: Any, committed_only: bool = True) -> dict[Any, int]:
        return {PLACE: self._next(self.stable) if committed_only else 12}

    def _transactions_of_producers(self, *_: Any) -> list[Any]:
        if self.refuses is not None:
            raise self.refuses
        return self.states

    def _require_all_told(self, *_: Any, **__: Any) -> None:
        if self.hidden:
            raise TransactionError("not all may be described")

    def _read(self, *_: Any, **__: Any) -> Any:
        if self.first_row_ms is None:
            raise KafkaError("not to be read")
        yield [SimpleNamespace(base_timestamp_ms=self.first_row_ms)]


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    return Brokers(monkeypatch)


def test_one_that_writes_on_while_it_is_asked_about_still_holds_them_up(brokers: Brokers) -> None:
    """Of an id that may not be described no coordinator tells; only its rows have moved on."""
    brokers.opened = [{WRITES}, {replace(WRITES, last_written_ms=NOW_MS + 1)}]
    [found] = find_blocked(brokers.wire, {"t"}).partitions
    assert (found.stable, found.producer_id) == (5, 7)


def test_how_long_it_holds_them_up_is_not_the_age_of_its_newest_row(brokers: Brokers) -> None:
    brokers.first_row_ms = NOW_MS - 2 * HOUR_MS
    [found] = find_blocked(brokers.wire, {"t"}, older_than_ms=HOUR_MS).partitions
    assert found.age_ms == 2 * HOUR_MS


@pytest.mark.parametrize(("hidden", "said"), [(True, "not known"), (False, "hanging")])
def test_one_that_may_be_hidden_from_us_is_not_called_hanging(
    brokers: Brokers, hidden: bool, said: str
) -> None:
    """Rows with the times of their events make it old at once; its coordinator may know it."""
    brokers.opened = [{replace(WRITES, last_written_ms=0)}]
    brokers.hidden = hidden
    found = find_blocked(brokers.wire, {"t"})
    assert [each.state for each in found.partitions] == [said]
    assert found.untold == (("not all may be described",) if hidden else ())


@pytest.mark.parametrize("goes_on", [False, True])
def test_readers_that_stand_still_behind_nothing_that_a_leader_names_are_told(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    brokers.opened, brokers.stable = [set()], [5, 12 if goes_on else 5]
    found = find_blocked(brokers.wire, {"t"})
    assert found.partitions == ()
    assert len(found.unnamed) == (not goes_on)
    monkeypatch.setattr(blocked, "find_blocked", lambda *_, **__: found)
    monkeypatch.setattr(
        "airflow_eos.kafka.client.connection.ConnectionPool", lambda *_, **__: nullcontext()
    )
    ran = CliRunner().invoke(app, ["blocked", "t", "-b", "nowhere:1"])
    assert ran.exit_code == (not goes_on)
    assert ("No transaction holds readers up" in ran.output) is goes_on
    assert ("they stand at offset 5" in ran.output) is not goes_on


def test_one_whose_markers_are_being_written_is_not_its_writers_to_end(brokers: Brokers) -> None:
    here = [SimpleNamespace(topic="t", partitions=[0])]
    brokers.states = [
        SimpleNamespace(
            producer_id=7,
            transactional_id="etl-eos-0-0",
            transaction_state="PrepareCommit",
            transaction_start_time_ms=NOW_MS,
            transaction_timeout_ms=60_000,
            topics=here,
        )
    ]
    [found] = find_blocked(brokers.wire, {"t"}).partitions
    assert next_step(found) == "ending"
    assert "leader" in ends_by(found)


def test_one_whose_marker_was_left_out_is_ended_however_young_it_is(brokers: Brokers) -> None:
    """``hanging`` alone says that nothing hangs until it is older than the longest timeout."""
    brokers.states = [
        SimpleNamespace(
            producer_id=7,
            transactional_id="etl-eos-0-0",
            transaction_state="CompleteAbort",
            transaction_start_time_ms=NOW_MS,
            transaction_timeout_ms=60_000,
            topics=[],
        )
    ]
    [found] = find_blocked(brokers.wire, {"t"}).partitions
    assert ends_by(found) == "hanging t --older-than 0"


@pytest.mark.parametrize("refusal", [KafkaError("denied"), KafkaUnavailableError("silent")])
def test_what_coordinators_do_not_tell_hides_nothing_of_what_leaders_have_told(
    brokers: Brokers, refusal: KafkaError
) -> None:
    brokers.refuses = refusal
    found = find_blocked(brokers.wire, {"t"})
    assert [each.state for each in found.partitions] == ["not known"]
    assert found.untold == (str(refusal),)


@pytest.mark.parametrize("refusal", [KafkaError("denied"), KafkaUnavailableError("silent")])
def test_groups_that_are_not_told_hide_nothing_of_what_holds_them_up(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, refusal: KafkaError
) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise refusal

    monkeypatch.setattr(blocked, "_committed", COMMITTED)
    monkeypatch.setattr(blocked, "_groups", refused)
    found = find_blocked(brokers.wire, {"t"})
    assert len(found.partitions) == 1
    assert found.untold == (f"how far consumer groups are: {refusal}",)
    monkeypatch.setattr(blocked, "_groups", lambda *_: ["readers"])
    monkeypatch.setattr(blocked, "GroupCoordinator", lambda *_: SimpleNamespace(read=refused))
    assert find_blocked(brokers.wire, {"t"}).unread == ("readers",)
