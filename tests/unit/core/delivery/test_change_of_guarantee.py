"""A checkpoint whose guarantee is changed, beside a driver of the former one or after its death."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import obstore.store
import pytest
from msgspec import structs

from airflow_eos.core.checkpoint import (
    CheckpointStore,
    Decision,
    DecisionLog,
    OffsetLog,
    PipelineIdentity,
    Verdict,
    claim,
    newest_term,
    take_term,
)
from airflow_eos.core.delivery import exactly_once, weaker_guarantees
from airflow_eos.core.delivery.batch import Authority, ExactlyOnceBatch
from airflow_eos.core.delivery.weaker_guarantees import may_be_visible
from airflow_eos.core.protocol.participant import Member
from airflow_eos.core.protocol.promise import Promise
from airflow_eos.errors import OwnershipError, SupersededError
from tests.support.authority import OneParticipant
from tests.support.starts import Unchanged, begun
from tests.unit.core.delivery.fakes import FakeBroker, FakeFrame, FakeParticipant, FakeSink

PLANNED = b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":7}\n{}'


class Visible(OneParticipant):
    """What is written is seen at once."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.connect: Callable[[Any], Any] = lambda _: FakeParticipant(FakeBroker())

    def prepare(self, rows: Any, *, only: Any = None) -> list[Any]:
        self.seen += rows if only is None else ()
        return []


@pytest.fixture
def store() -> CheckpointStore:
    return CheckpointStore(obstore.store.MemoryStore(), "memory")


@pytest.fixture(autouse=True)
def no_spark(monkeypatch) -> None:
    for module in (exactly_once, weaker_guarantees):
        monkeypatch.setattr(module, "retained_batches", lambda _spark: 2)
        monkeypatch.setattr(module, "InPlanSink", lambda sink: sink)


def start(store: CheckpointStore, guarantee: str, sink: Any = None) -> Any:
    """As ``start_exactly_once`` does, short of the query."""
    heartbeat: Any = SimpleNamespace(
        observer=None, start=lambda _: None, enter_phase=lambda *_: None
    )
    told = sink or MagicMock(connect=lambda _: FakeParticipant(FakeBroker()), keeping=())
    told.guarantee, told.visibility_markers = guarantee, None
    return begun(MagicMock(), told, store, heartbeat)


def after_the_term(monkeypatch, then: Callable[[CheckpointStore], object]) -> None:
    """What another driver does while this one takes its term."""
    real = take_term

    def taken(store: CheckpointStore, **told: Any) -> Any:
        then(store)
        return real(store, **told)

    monkeypatch.setattr("airflow_eos.core.delivery.weaker_guarantees.take_term", taken)
    monkeypatch.setattr("airflow_eos.core.delivery.takeover.take_term", taken)


@pytest.mark.parametrize("guarantee", ["at_most_once", "at_least_once"])
def test_what_a_live_driver_has_begun_is_not_delivered_exactly_once(store, monkeypatch, guarantee):
    """It begins the batch after this one's first look, and has not seen the term of this one."""
    sink = Visible()
    other = start(store, guarantee, sink)

    def write(store: CheckpointStore) -> None:
        store.put("offsets/0", PLANNED)
        other(["a"], 0)

    after_the_term(monkeypatch, write)
    with pytest.raises(OwnershipError, match=f"begun with .*{guarantee}"):
        start(store, "exactly_once")
    assert sink.seen == ["a"], "and it would have come twice"


def test_what_an_exact_driver_may_promise_is_not_written_at_once(store, monkeypatch):
    """It claims the checkpoint after this one's first look, and has not seen its term."""
    pipeline = PipelineIdentity(
        id="a", participants=(), created_at_ms=1, created_by="another driver"
    )
    after_the_term(monkeypatch, lambda store: claim(store, pipeline))
    with pytest.raises(OwnershipError, match="delivers exactly once"):
        start(store, "at_most_once")


WITH_A_GROUP = PipelineIdentity(
    id="a",
    participants=(Member("consumer_group", "consumer_group", {"group": "orders"}),),
    created_at_ms=1,
    created_by="another driver",
)


def test_nothing_is_written_behind_a_group_that_may_say_drained(store):
    """A start from the group, without the checkpoint, would read it again and deliver it twice."""
    claim(store, WITH_A_GROUP)
    with pytest.raises(OwnershipError, match=r"group 'orders'.*only\s+exactly_once moves on"):
        start(store, "at_least_once")
    assert newest_term(store) == 0, "and nobody's term was taken away"


def test_nor_behind_one_whose_pipeline_is_begun_meanwhile(store, monkeypatch):
    after_the_term(monkeypatch, lambda store: claim(store, WITH_A_GROUP))
    with pytest.raises(OwnershipError, match="group 'orders'"):
        start(store, "at_least_once")


class Untimed(FakeParticipant):
    """Of whose work no timer ends any."""

    def open(self, **given: Any) -> tuple[Any, ...]:
        return tuple(structs.replace(each, timeout_ms=None) for each in super().open(**given))


@pytest.mark.parametrize("kind", [Untimed, FakeParticipant], ids=["without a timer", "with one"])
def test_what_was_prepared_is_aborted_where_another_guarantee_begins(store, kind):
    """None of its batches lists what is open: readers would stand still for good, or for long."""
    broker = FakeBroker()

    def sink() -> Any:
        return MagicMock(connect=lambda _: kind(broker), keeping=())

    start(store, "exactly_once", sink())
    store.put("offsets/0", PLANNED)
    broker.prepare("etl-0-0", ("a",))
    start(store, "at_least_once", sink())
    assert broker.open() == []


def test_at_least_once_goes_on_where_what_was_prepared_cannot_be_asked_for(store):
    """A right, say, that it needs no more."""

    def refused(_: Any) -> Any:
        raise OwnershipError("not allowed")

    start(store, "exactly_once")
    sink = Visible()
    sink.connect = refused
    store.put("offsets/0", PLANNED)
    start(store, "at_least_once", sink)(["a"], 0)
    assert sink.seen == ["a"]


@pytest.mark.parametrize("next_one", ["exactly_once", "at_most_once"])
def test_what_at_least_once_has_written_does_not_come_twice_from_another_guarantee(store, next_one):
    """Its driver died before Spark's commit of the batch: nobody knows how much readers have."""
    store.put("offsets/0", PLANNED)
    sink = Visible()
    start(store, "at_least_once", sink)(["a"], 0)
    assert may_be_visible(store)
    if next_one == "exactly_once":
        with pytest.raises(OwnershipError, match=r"begun with .*at_least_once"):
            start(store, next_one)
        assert newest_term(store) == 1, "and nobody's term was taken away"
    else:
        start(store, next_one, sink)(["a"], 0)
    assert sink.seen == ["a"]


def test_at_least_once_writes_what_it_began_again_and_then_changes(store):
    sink = Visible()
    store.put("offsets/0", PLANNED)
    start(store, "at_least_once", sink)(["a"], 0)
    start(store, "at_least_once", sink)(["a"], 0)
    assert sink.seen == ["a", "a"]
    store.put("commits/0", b"v1\n{}")
    start(store, "exactly_once")


def test_at_least_once_that_wakes_up_after_another_guarantee_took_over_writes_nothing(store):
    sink = Visible()
    slept = start(store, "at_least_once", sink)
    store.put("offsets/0", PLANNED)
    start(store, "exactly_once")
    with pytest.raises(SupersededError, match="another driver has started since"):
        slept(["a"], 0)
    assert sink.seen == []


def test_its_marks_are_kept_as_long_as_spark_may_run_a_batch_again(store):
    running = start(store, "at_least_once", Visible())
    for batch in range(5):
        running(["a"], batch)
    assert sorted(store.folders("eos/spent")) == ["3", "4"]


def promised(store: CheckpointStore, batch: int = 0) -> None:
    """An exact driver has planned the batch and promised it."""
    store.put(f"offsets/{batch}", PLANNED)
    assert DecisionLog(store).record(Decision(**(COMMIT | {"batch_id": batch})))


COMMIT: dict[str, Any] = {
    "batch_id": 0,
    "attempt": 1,
    "verdict": Verdict.COMMIT,
    "works": (),
    "offsets": PLANNED.decode(),
    "decided_by": "an exact driver",
    "decided_at_ms": 1,
    "nonce": "a" * 32,
}


def test_of_two_at_least_once_the_older_one_begins_no_batch_again(store):
    """It slept for longer than Spark keeps what it has planned, and finds all places empty."""
    sink = Visible()
    slept = start(store, "at_least_once", sink)
    goes_on = start(store, "at_least_once", sink)
    for batch in range(5):
        goes_on([str(batch)], batch)
    with pytest.raises(SupersededError, match="another driver has started since, with term 2"):
        slept(["0"], 0)
    assert sink.seen == list("01234")


@pytest.mark.parametrize("former", ["at_least_once", "at_most_once"])
def test_a_mark_of_a_superseded_driver_does_not_hold_up_what_is_promised(store, former):
    """It planned a batch, marked it, saw the newer term and wrote nothing; the other one died."""
    slept = start(store, former, Visible())
    start(store, "exactly_once")
    store.put("offsets/0", PLANNED)
    with pytest.raises(SupersededError):
        slept(["a"], 0)
    promised(store)
    start(store, "exactly_once")


def test_what_is_begun_with_at_most_once_can_be_ended_so_after_an_exact_start(store, monkeypatch):
    """The exact driver owned the checkpoint by the time it found the mark; the other one died."""
    other, sink = start(store, "at_most_once", Visible()), Visible()

    def write(store: CheckpointStore) -> None:
        store.put("offsets/0", PLANNED)
        other(["a"], 0)

    with monkeypatch.context() as patched:
        after_the_term(patched, write)
        with pytest.raises(OwnershipError, match=r"begun with .*at_most_once"):
            start(store, "exactly_once")
    start(store, "at_most_once", sink)(["a"], 0)
    assert sink.seen == [], "what was begun is given up"
    store.put("commits/0", b"v1\n{}")
    with pytest.raises(OwnershipError, match="delivers exactly once"):
        start(store, "at_most_once")
    start(store, "exactly_once")


class TestAtLeastOnceAfterAnExactDriver:
    """The exact one sleeps in the middle of its batch, with everything prepared."""

    @pytest.fixture
    def broker(self) -> FakeBroker:
        return FakeBroker()

    @pytest.fixture
    def exact(self, store, broker) -> ExactlyOnceBatch:
        """Started, its batch planned."""
        start(store, "exactly_once")
        tenure = take_term(store, taken_by="the exact driver")
        store.put("offsets/0", PLANNED)
        log = DecisionLog(store)
        return ExactlyOnceBatch(
            FakeSink(broker),
            FakeParticipant(broker),
            log,
            Authority(
                tenure, OffsetLog(store, log), FakeParticipant(broker), evaluated_at=lambda _: 7
            ),
            rulings=lambda _: {},
            driver="the exact driver",
            on_phase=lambda *_: None,
        )

    def test_it_shows_nothing_of_what_at_least_once_has_written(self, store, broker, exact):
        sink = FakeSink(broker)
        exact._sink = sink
        visible = Visible()
        sink.before_return = lambda: start(store, "at_least_once", visible)(["a"], 0)
        with pytest.raises(SupersededError):
            exact(FakeFrame(["a"]), 0)
        assert visible.seen == ["a"]
        assert broker.visible() == [], "it came twice"

    def test_it_leaves_no_promise_behind(self, store, broker, exact):
        """An exact start after that would settle it: and the batch is long delivered."""
        sink = FakeSink(broker)
        exact._sink = sink

        def go_on() -> None:
            start(store, "at_least_once", Visible())(["a"], 0)
            store.put("commits/0", b"v1\n{}")

        sink.before_return = go_on
        with pytest.raises(SupersededError):
            exact(FakeFrame(["a"]), 0)
        assert Promise.of(DecisionLog(store).of_batch(0)) is None

    def test_it_sleeps_between_its_look_and_its_attempt(self, store, broker, exact, monkeypatch):
        """Found by the model: it takes the next attempt then, as if a recovery had sealed this."""
        visible, really = Visible(), DecisionLog.of_batch
        slept: list[int] = []

        def of_batch(log: DecisionLog, batch: int) -> Any:
            if not slept:
                slept.append(batch)
                start(store, "at_least_once", visible)(["a"], 0)
            return really(log, batch)

        monkeypatch.setattr(DecisionLog, "of_batch", of_batch)
        with pytest.raises(SupersededError):
            exact(FakeFrame(["a"]), 0)
        assert visible.seen == ["a"]
        assert Promise.of(DecisionLog(store).of_batch(0)) is None
        assert broker.open() == []

    def test_it_stops_between_two_batches_too(self, store, exact):
        start(store, "at_least_once", Visible())
        with pytest.raises(SupersededError):
            exact(FakeFrame(["a"]), 0)

    def test_a_promise_that_came_meanwhile_is_not_written_again(self, store, monkeypatch):
        start(store, "exactly_once")
        after_the_term(monkeypatch, promised)
        sink = Visible()
        with pytest.raises(OwnershipError, match="promised with exactly_once"):
            start(store, "at_least_once", sink)(["a"], 0)
        assert sink.seen == []


def test_what_exactly_once_has_read_is_confirmed_by_whoever_decides_it(store, monkeypatch):
    """The sink leaves it to the batch, which asks its source and its sink's system at once."""
    looked: list[str] = []
    monkeypatch.setattr(
        Unchanged, "__init__", lambda self: setattr(self, "look", lambda: looked.append("looked"))
    )
    batch = start(store, "exactly_once")
    looked.clear()
    batch._confirm()
    assert looked == ["looked"]
