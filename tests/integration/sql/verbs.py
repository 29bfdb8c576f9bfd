"""What the verbs of a participant owe, whatever database it is: its own module imports these.

A module that does has a fixture ``world`` (see :mod:`.world`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from airflow_eos.core.protocol.decision import Outcome, PreparedWork
from airflow_eos.core.protocol.participant import Participant
from airflow_eos.core.protocol.promise import OperatorRuling, Promise
from airflow_eos.kinds.sql.participant import GENERATION
from tests.integration.sql.world import SqlWorld
from tests.support.pipelines import require_at


def became(works: list[PreparedWork], outcome: Outcome) -> dict[Any, Outcome]:
    return {work.identity: outcome for work in works}


def require_owner(
    participant: Participant, location: str, planned: int | None = None, **decided: Any
) -> None:
    """What a start asks of the database; ``b7``: the decisions of batch 7."""
    require_at(participant, location, planned, **decided)
    promise = Promise.of(decided.get(f"b{(planned or 0) - 1}", ()))
    if promise is not None:
        participant.require_settled(promise, OperatorRuling(frozenset(), {}))


def test_nothing_is_seen_before_the_commit_and_all_of_it_after(world: SqlWorld):
    ours, before = world.participant(), world.holdings()
    works = [world.prepare(1, 2), world.prepare(3, task=1)]
    assert world.seen() == []
    assert {each.key for each in ours.open()} == {work.key for work in works}
    assert [each.key for each in ours.open(except_known=[works[0].identity])] == [works[1].key]
    if world.kept():
        assert getattr(ours, "clock_ms", lambda: None)() is None, "the store's clock has dated them"
    else:
        ages = [ours.clock_ms() - each.opened_at_ms for each in ours.open()]
        assert all(0 <= age < 60_000 for age in ages), "by the server's clock, which has dated them"
    assert ours.outcome(works) == became(works, Outcome.OPEN)
    assert ours.commit(works) == became(works, Outcome.COMMITTED)
    assert world.seen() == [1, 2, 3]
    assert ours.outcome(works) == became(works, Outcome.COMMITTED)
    assert (ours.open(), world.holdings()) == ((), before)


def test_a_commit_again_changes_nothing_twice(world: SqlWorld):
    work = world.prepare()
    for _ in range(3):
        assert world.participant().commit([work]) == became([work], Outcome.COMMITTED)
    assert world.seen() == [1, 2, 3]


def test_what_was_aborted_can_never_be_committed(world: SqlWorld):
    """Also by a zombie, whose commit comes late."""
    zombie, ours, before = world.participant(), world.participant(), world.holdings()
    work = world.prepare()
    assert ours.abort([work.identity]) == {work.identity: True}
    assert ours.abort([work.identity]) == {work.identity: False}
    assert zombie.commit([work]) == became([work], Outcome.ABORTED)
    assert ours.outcome([work]) == became([work], Outcome.ABORTED)
    assert (world.seen(), ours.open(), world.holdings()) == ([], (), before)


def test_an_abort_takes_nothing_from_readers(world: SqlWorld):
    ours, work = world.participant(), world.prepare()
    ours.commit([work])
    assert ours.abort([work.identity]) == {work.identity: False}
    assert ours.outcome([work]) == became([work], Outcome.COMMITTED)
    assert world.seen() == [1, 2, 3]


def test_a_commit_between_two_looks_is_no_abort(world: SqlWorld, monkeypatch: pytest.MonkeyPatch):
    ours, work = world.participant(), world.prepare()
    real: dict[str, Callable[..., Any]] = {
        name: getattr(world.book, name) for name in ("_waiting", "_witnessed")
    }
    looks = []

    def look(name: str) -> Callable[..., Any]:
        def looked(*given: Any) -> Any:
            found = real[name](*given)
            looks.append(name)
            if len(looks) == 1:
                with monkeypatch.context() as undone:
                    for each, function in real.items():
                        undone.setattr(world.book, each, function)
                    world.participant().commit([work])
            return found

        return looked

    for name in real:
        monkeypatch.setattr(world.book, name, look(name))
    assert ours.outcome([work])[work.identity] in (Outcome.OPEN, Outcome.COMMITTED)


def test_a_floor_that_moves_between_the_looks_is_no_abort(
    world: SqlWorld, monkeypatch: pytest.MonkeyPatch
):
    """Of a sleeper: its witness goes after it has read the floor, before it looks for it."""
    ours, work, look = world.participant(), world.prepare(), world.book._waiting
    ours.commit([work])

    def looked(*given: Any) -> Any:
        found = look(*given)
        other: Any = world.participant()
        other._book.begin_generation(work.detail[GENERATION] + 2, 0)
        return found

    monkeypatch.setattr(world.book, "_waiting", looked)
    assert ours.outcome([work]) == became([work], Outcome.UNKNOWN)


def test_several_committers_at_once_deliver_once(world: SqlWorld):
    works = [world.prepare(each, task=each) for each in range(4)]
    racers = [world.participant() for _ in range(4)]
    start = threading.Barrier(len(racers))

    def race(ours: Any) -> Any:
        start.wait()
        return ours.commit(works)

    with ThreadPoolExecutor(len(racers)) as pool:
        assert list(pool.map(race, racers)) == [became(works, Outcome.COMMITTED)] * len(racers)
    assert world.seen() == [0, 1, 2, 3]


def test_a_commit_and_an_abort_at_once_agree_on_one(world: SqlWorld):
    committer, aborter = world.participant(), world.participant()
    for each in range(6):
        work = world.prepare(each)
        start = threading.Barrier(2)

        def at_once(act: Callable[..., Any], given: Any, start: Any = start) -> Any:
            start.wait()
            return act([given])

        with ThreadPoolExecutor(2) as pool:
            told = pool.submit(at_once, committer.commit, work)
            removed = pool.submit(at_once, aborter.abort, work.identity)
        is_there = each in world.seen()
        assert removed.result() == {work.identity: not is_there}
        expected = Outcome.COMMITTED if is_there else Outcome.ABORTED
        assert told.result() == became([work], expected) == aborter.outcome([work])
