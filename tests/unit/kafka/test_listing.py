"""A part of the open transactions must never pass for all of them: recovery rests on the listing.

Each broker tells only what it coordinates, and while it takes over from another one it tells less.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import kafka.errors as kafka_errors
import pytest

from airflow_eos.errors import KafkaUnavailableError, TransactionError
from airflow_eos.kafka.client import errors as deadline
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.client.messages import ListTransactionsRequest
from airflow_eos.kafka.transactions import listing
from airflow_eos.kafka.transactions.identity import TransactionIdentity
from tests.model.wire import VirtualTime

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
            error_code=code,
            transaction_states=states,
            unknown_state_filters=self.unknown_states,
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
    assert listed(besides=[TransactionIdentity("etl-eos-0-0", 7, 1)]) == ["etl-eos-1-0"]


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
    assert listed(besides=[TransactionIdentity("etl-eos-0-0", 7, 1)]) == ["etl-eos-1-0"]
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


@pytest.mark.parametrize(
    ("version", "committed"), [(1, {(7, 1)}), (2, {(7, 1), (7, 0)})], ids=["kept", "raised"]
)
def test_a_commit_by_a_client_of_before_4_0_is_a_commit_on_a_cluster_that_raises_epochs(
    cluster, version, committed
):
    """With EndTxn 4 and below the epoch stays; else its left-out marker would become an abort."""
    cluster.state, cluster.transaction_version = "CompleteCommit", version
    wire: Any = cluster
    assert listing.committed_by_coordinators(wire, {7}) == committed


def test_a_state_that_is_not_known_is_none_of_one_that_is_through(cluster):
    cluster.state = "PrepareEpochFence"
    wire: Any = cluster
    ours = TransactionIdentity("etl-eos-0-0", 7, 1)
    assert listing.not_ended_yet(wire, [ours]) == {"etl-eos-0-0"}
    cluster.state = "CompleteAbort"
    assert listing.not_ended_yet(wire, [ours]) == frozenset()
