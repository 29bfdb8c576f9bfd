"""Transactions that no timer ends: who asks for them, and how they stand in a decision."""

from __future__ import annotations

import os
import time
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.backend import WATCHDOG
from airflow_eos.core.checkpoint.watchdog_record import WatchdogRecord, note_look
from airflow_eos.core.delivery.batch import require_time_left
from airflow_eos.errors import ConfigurationError, TransactionError
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.client.cluster import TWO_PHASE_SETTING
from airflow_eos.kafka.client.messages import InitProducerIdRequest
from airflow_eos.kafka.sink import KafkaSink
from airflow_eos.kafka.transactions.coordinator import TransactionCoordinator
from airflow_eos.kafka.transactions.identity import (
    NEVER_MS,
    OffsetRange,
    OpenTransaction,
    PreparedTransaction,
    as_open_work,
    as_transaction,
    as_work,
    not_ours,
)
from tests.support.metadata import capable

SINK = KafkaSink("kafka:9092", "out", "orders")


class Asked:
    """A cluster that answers InitProducerId; ``offers`` is what it does with Enable2Pc."""

    def __init__(self, *, speaks: int = 6, offers: bool = True, told: str | None = None) -> None:
        self.offers = offers
        self.asked: list[Any] = []
        settings = {} if told is None else {TWO_PHASE_SETTING: told}
        found = capable(most={InitProducerIdRequest: speaks}, settings=settings)
        self.cluster = SimpleNamespace(
            capabilities=lambda: found,
            coordinators=lambda ids, **_: dict.fromkeys(ids, 1),
            forget_coordinators=lambda _: None,
        )

    def submit(self, message: Any, **_how: Any) -> Any:
        self.asked.append(message)
        refused = message.enable2_pc and not self.offers
        code = faults.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if refused else faults.NONE
        future: Future[Any] = Future()
        future.set_result(SimpleNamespace(error_code=code, producer_id=7, producer_epoch=1))
        return future

    @property
    def ways(self) -> list[bool]:
        return [bool(each.enable2_pc) for each in self.asked]


def taken(wire: Any, two_phase: Any, coordinator: Any = None) -> bool:
    at = coordinator or TransactionCoordinator(wire)
    return bool(at.take("orders-eos-0-0", 60_000, two_phase)[1])


def test_auto_asks_for_one_without_a_timer_and_is_content_with_a_plain_one():
    offering, refusing, older = Asked(), Asked(offers=False), Asked(speaks=5)
    assert [taken(wire, "auto") for wire in (offering, refusing, older)] == [True, False, False]
    assert [offering.ways, refusing.ways, older.ways] == [[True], [True, False], [False]]


def test_who_does_not_want_one_is_never_given_one():
    wire = Asked()
    assert not taken(wire, two_phase=False)
    assert wire.ways == [False]


def test_one_without_a_timer_is_asked_for_in_no_version_that_leaves_that_out():
    wire = Asked()
    taken(wire, "auto")
    [message] = wire.asked
    assert (message._min_version, message.transaction_timeout_ms) == (6, NEVER_MS)


def test_a_refusal_is_not_asked_for_again_with_each_transaction():
    wire = Asked(offers=False)
    coordinator = TransactionCoordinator(wire)  # type: ignore[arg-type]
    for _ in range(3):
        taken(wire, "auto", coordinator)
    assert wire.ways == [True, False, False, False]


@pytest.mark.parametrize(
    ("wire", "named"),
    [
        (Asked(speaks=5), r"InitProducerId 6, to open .* is missing on broker 1"),
        (Asked(offers=False, told="false"), f"{TWO_PHASE_SETTING} is false"),
        (Asked(offers=False, told="true"), "so the ACL TwoPhaseCommit is missing"),
        (Asked(offers=False), "is not told: it is false, or the ACL TwoPhaseCommit is missing"),
    ],
    ids=["message", "setting", "right", "not told"],
)
def test_what_a_cluster_lacks_is_said_by_name(wire: Asked, named: str):
    with pytest.raises(TransactionError, match=named):
        taken(wire, two_phase=True)
    assert False not in wire.ways, "nothing else is opened in its place"


def test_a_decision_says_that_no_timer_ends_it_and_an_older_one_that_one_does():
    def prepared(timeout_ms: int | None) -> PreparedTransaction:
        at = (OffsetRange("out", 0, 5, 9),)
        return PreparedTransaction("orders-eos-0-0", 7, 1, at, 5, "0" * 32, 1, timeout_ms)

    for each in (prepared(None), prepared(60_000)):
        work = as_work(each, "sink")
        assert as_transaction(work) == each
    work = as_work(prepared(None), "sink")
    assert (work.timeout_ms, work.ends_at_ms) == (None, None)
    require_time_left([work], 10**15)


def test_an_open_one_that_no_timer_ends_is_listed_as_such_and_as_ours():
    listed = OpenTransaction("orders-eos-0-1", 7, 1, 5, NEVER_MS)
    assert as_open_work(listed, "sink").timeout_ms is None
    assert not_ours(listed, {60_000}) == "", "the pipeline's former ones had a timeout"


# --- who may ask for one --------------------------------------------------------------------------


def test_librdkafka_is_refused_by_name_and_auto_opens_plain_ones_there():
    with pytest.raises(ConfigurationError, match=r"goes with producer='arrow' .found 'librdkafka'"):
        KafkaSink("kafka:9092", "out", "orders", producer="librdkafka", two_phase=True)
    plain = KafkaSink("kafka:9092", "out", "orders", producer="librdkafka", unattended=True)
    assert plain.opens is False


@pytest.mark.parametrize("unsound", [1, 0, None, "True"])
def test_what_only_looks_like_true_is_no_word_for_it(unsound: Any) -> None:
    """1 was taken, and opened plain ones where it was refused: no start was."""
    with pytest.raises(ConfigurationError, match="expected True, False or 'auto'"):
        KafkaSink("kafka:9092", "out", "orders", two_phase=unsound)


@pytest.mark.parametrize(
    ("two_phase", "unattended", "opens"),
    [("auto", False, False), ("auto", True, "auto"), (True, False, False), (True, True, True)],
)
def test_without_somebody_who_looks_none_is_opened(
    tmp_path: Path, two_phase: Any, opens: Any, *, unattended: bool
) -> None:
    sink = KafkaSink("kafka:9092", "out", "p", two_phase=two_phase, unattended=unattended)
    assert sink.bound(CheckpointStore.open(tmp_path)).opens == opens
    if two_phase is True and not unattended:
        with pytest.raises(ConfigurationError, match="no watchdog looks at this checkpoint"):
            sink.connect(SINK.batch_within)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore.open(tmp_path)


@pytest.mark.parametrize(
    ("interval_ms", "age_s", "seen"),
    [
        (60_000, 100, True),
        (60_000, 200, False),
        (None, 0, False),
        (SINK.timeout_ms, 0, True),
        (86_400_000, 0, False),
    ],
    ids=["looks", "has stopped", "without a schedule", "as a timer would", "once a day"],
)
def test_a_watchdog_counts_while_it_looks_as_often_as_a_timer_would_and_as_it_means_to(
    store: CheckpointStore, interval_ms: int | None, age_s: int, *, seen: bool
) -> None:
    assert SINK.bound(store).opens is False, "nobody has ever looked"
    note_look(store, WatchdogRecord(dag_id="w", run_id="1", interval_ms=interval_ms))
    looked_s = time.time() - age_s
    os.utime(Path(store.location) / WATCHDOG, (looked_s, looked_s))
    assert (SINK.bound(store).opens == "auto") is seen
    assert [each.path for each in store.list("eos")] == [WATCHDOG], "the probe is removed"
