"""A checkpoint whose guarantee is changed, beside a driver of the former one or after its death."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import obstore.store
import pytest

from airflow_eos.checkpoint import CheckpointStore, Pipeline, claim, take_term
from airflow_eos.errors import OwnershipError, SupersededError
from airflow_eos.sinks import guaranteed as started
from airflow_eos.sinks.spent import is_spent
from tests.support.planned import OneParticipant
from tests.unit.sinks.fakes import FakeBroker, FakeParticipant

pytestmark = pytest.mark.unit

PLANNED = b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":7}\n{}'


class Visible(OneParticipant):
    """What is written is seen at once."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def prepare(self, rows: Any, *, only: Any = None) -> list[Any]:
        self.seen += rows if only is None else ()
        return []


@pytest.fixture
def store() -> CheckpointStore:
    return CheckpointStore(obstore.store.MemoryStore(), "memory")


@pytest.fixture(autouse=True)
def no_spark(monkeypatch) -> None:
    monkeypatch.setattr(started, "retained_batches", lambda _spark: 2)
    monkeypatch.setattr(started, "PlannedSink", lambda sink: sink)


def start(store: CheckpointStore, guarantee: str, sink: Any = None) -> Any:
    """As ``start_exactly_once`` does, short of the query."""
    heartbeat: Any = SimpleNamespace(observer=None, start=lambda _: None, mark=lambda *_: None)
    told = sink or MagicMock(connect=lambda _: FakeParticipant(FakeBroker()), keeping=())
    told.guarantee, told.marks = guarantee, None
    with ExitStack() as resources:
        given = (timedelta(), heartbeat, MagicMock(), resources)
        return started.guaranteed(MagicMock(), told, store, lambda sink: sink, *given)


def after_the_term(monkeypatch, then: Callable[[CheckpointStore], object]) -> None:
    """What another driver does while this one takes its term."""
    real = take_term

    def taken(store: CheckpointStore, **told: Any) -> Any:
        then(store)
        return real(store, **told)

    monkeypatch.setattr(started, "take_term", taken)
    monkeypatch.setattr("airflow_eos.sinks.takeover.take_term", taken)


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
    pipeline = Pipeline(id="a", participants=(), created_at_ms=1, created_by="another driver")
    after_the_term(monkeypatch, lambda store: claim(store, pipeline))
    with pytest.raises(OwnershipError, match="delivers exactly once"):
        start(store, "at_most_once")


@pytest.mark.parametrize("next_one", ["exactly_once", "at_most_once"])
def test_what_at_least_once_has_written_does_not_come_twice_from_another_guarantee(store, next_one):
    """Its driver died before Spark's commit of the batch: nobody knows how much readers have."""
    store.put("offsets/0", PLANNED)
    sink = Visible()
    start(store, "at_least_once", sink)(["a"], 0)
    assert is_spent(store)
    if next_one == "exactly_once":
        with pytest.raises(OwnershipError, match=r"begun with .*at_least_once"):
            start(store, next_one)
        assert not list(store.list("eos/drivers")), "and nobody's term was taken away"
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
    with pytest.raises(SupersededError, match="another guarantee has started since"):
        slept(["a"], 0)
    assert sink.seen == []


def test_its_marks_are_kept_as_long_as_spark_may_run_a_batch_again(store):
    running = start(store, "at_least_once", Visible())
    for batch in range(5):
        running(["a"], batch)
    assert sorted(store.folders("eos/spent")) == ["3", "4"]
