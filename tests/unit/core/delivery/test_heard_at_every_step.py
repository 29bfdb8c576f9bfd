"""What a person asks for is heard, before whichever call of a start, a take-over or a hand-over.

Each history is played once for each call that the others make to the store: the person comes right
before that one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from obstore.store import MemoryStore

from airflow_eos.core.checkpoint import (
    CheckpointStore,
    drain_newest,
    drain_requested,
    newest_term,
    request_drain,
    take_term,
    write_heartbeat,
)
from airflow_eos.core.checkpoint.backend import DRAIN
from airflow_eos.core.checkpoint.drain import BY_STANDBY, Beginning, withdraw_hand_over
from airflow_eos.core.checkpoint.standby import hand_over
from airflow_eos.core.delivery.beats import BeatLoop
from airflow_eos.core.delivery.standby import StandingBy
from airflow_eos.errors import CalledOffError, ConfigurationError
from tests.support.beats import heartbeat, standby

ANN = "cli ann"
CALLS_AT_MOST = 200


class Interrupted:
    """A store before whose n-th call something else happens, once."""

    def __init__(self) -> None:
        self.real = MemoryStore()
        self.left = -1
        self.comes: Callable[[], object] = lambda: None

    def before(self, call: int, comes: Callable[[], object]) -> None:
        self.left, self.comes = call, comes

    def __getattr__(self, name: str) -> Any:
        asked = getattr(self.real, name)

        def answer(*given: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left == -1:
                self.comes()
            return asked(*given, **named)

        return answer


Story = Callable[[CheckpointStore, Callable[[], None]], object]


def played(story: Story) -> list[object]:
    """What the story ends with, for each of its calls before which a person asks."""
    ends: list[object] = []
    for call in range(CALLS_AT_MOST):
        backend = Interrupted()
        store = CheckpointStore(backend, "memory")
        take_term(store, taken_by="former")
        write_heartbeat(store, heartbeat(term=1))
        person = CheckpointStore(backend.real, "memory")
        interrupt = partial(
            backend.before, call, partial(drain_newest, person, requested_by=ANN, reason="x")
        )
        ends.append(story(store, interrupt))
        if backend.left >= 0:
            assert call > 3, "the story asks for nothing"
            return ends[:-1]
    pytest.fail("it never ends")


def driver(store: CheckpointStore, began: Beginning, after: int) -> str:
    """Take the term, and do what a driver does first; say whether it is going to end."""
    writer = BeatLoop(store, application_id="new", trigger=timedelta(seconds=1), began=began)
    writer._own.interval = writer._own._usual = timedelta(hours=1)
    writer.start(take_term(store, taken_by="new", after=after).term.number)
    writer._beat()
    writer._ended.set()
    asked = drain_requested(store, term=newest_term(store))
    by = None if asked is None else asked.requested_by
    return f"drains: {by}" if writer.draining.is_set() else f"drives: {by}"


HEARD = {f"drains: {ANN}", f"drives: {ANN}", "left"}
"""The request stands and is the driver's: its next beat hears it."""


@pytest.mark.parametrize("stands", ["nothing", "a hand-over", "an old one", "damaged"])
@pytest.mark.parametrize("standby", [True, False], ids=["a standby", "a start"])
def test_a_person_who_asks_while_another_driver_comes_is_heard_by_that_one(standby, stands):
    """Between its last look and its term, or its first step after that: it was lost there."""

    def story(store: CheckpointStore, interrupt: Callable[[], None]) -> str:
        if stands == "a hand-over":
            request_drain(store, requested_by=BY_STANDBY, reason="upgrade", term=1)
        elif stands == "an old one":
            request_drain(store, requested_by="cli bob", reason="before", term=1)
        elif stands == "damaged":
            store.put(DRAIN, b"\0" * 40)
        now = [0.0]

        def sleep(seconds: float) -> None:
            now[0] += seconds

        began = Beginning.now(store)
        if not standby:
            interrupt()
            return driver(store, began, 1)
        write_heartbeat(store, heartbeat("failed", term=1, end="failed"))
        waits = StandingBy(
            store,
            application_id="s",
            still_wanted=lambda: None,
            began=began,
            sleep=sleep,
            clock=lambda: now[0],
        )
        interrupt()
        try:
            return driver(store, began, waits.until_our_turn())
        except CalledOffError:
            return "left"

    assert set(played(story)) <= HEARD


@pytest.mark.parametrize("stands", [True, False], ids=["beside an old one", "alone"])
def test_a_person_who_is_overtaken_by_a_start_while_he_asks_is_heard_by_that_one(stands):
    """He read the term before it was taken, and wrote his request after it was looked for."""
    for call in range(CALLS_AT_MOST):
        backend = Interrupted()
        store = CheckpointStore(backend, "memory")
        take_term(store, taken_by="former")
        write_heartbeat(store, heartbeat(term=1))
        if stands:
            request_drain(store, requested_by="cli bob", reason="before", term=1)
        others = CheckpointStore(backend.real, "memory")
        began, found = Beginning.now(others), []
        backend.before(call, lambda: found.append(driver(others, began, 1)))  # noqa: B023
        drain_newest(store, requested_by=ANN, reason="x")
        if not found:
            assert call > 2
            return
        asked = drain_requested(store, term=2)
        assert asked is not None, f"before call {call}"
        assert asked.requested_by == ANN, f"before call {call}"
    pytest.fail("it never ends")


def test_what_a_person_asked_for_before_a_start_began_is_over_for_it():
    def story(store: CheckpointStore, _: Callable[[], None]) -> str:
        drain_newest(store, requested_by=ANN, reason="x")
        return driver(store, Beginning.now(store), 1)

    store = CheckpointStore(MemoryStore(), "memory")
    take_term(store, taken_by="former")
    assert story(store, lambda: None) == "drives: None"


def test_a_request_that_another_driver_took_on_is_no_new_one():
    """Two starts come: the first obeys what the second had found, under the first one's term."""
    store = CheckpointStore(MemoryStore(), "memory")
    take_term(store, taken_by="former")
    first = Beginning.now(store)
    drain_newest(store, requested_by=ANN, reason="x")
    second = Beginning.now(store)
    assert driver(store, first, 1) == f"drains: {ANN}"
    assert driver(store, second, 2) == "drives: None"


@pytest.mark.parametrize("step", ["it is asked for", "it is taken back"])
def test_a_person_who_asks_while_a_hand_over_is_asked_for_or_taken_back_is_heard(step, monkeypatch):
    """No store deletes or replaces only what was read."""
    from airflow_eos.core.checkpoint import standby as module

    monkeypatch.setattr(module, "living_standbys", lambda _: (standby(),))

    def story(store: CheckpointStore, interrupt: Callable[[], None]) -> str | None:
        if step == "it is taken back":
            request_drain(store, requested_by=BY_STANDBY, reason="upgrade", term=1)
            interrupt()
            withdraw_hand_over(store, term=1, submission=None)
        else:
            store.put(DRAIN, b"damaged: is replaced by whoever asks next")
            interrupt()
            with suppress(ConfigurationError):
                hand_over(store, requested_by="cli bob", reason="upgrade")
        asked = drain_requested(store, term=1)
        return None if asked is None else asked.requested_by

    assert set(played(story)) == {ANN}
