"""What the verbs of a participant owe, whatever database it is: its own module imports these.

A module that does has a fixture ``world`` (see :mod:`.world`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from airflow_eos.core.participants import connect
from airflow_eos.core.protocol.decision import Outcome, PreparedWork
from airflow_eos.core.protocol.participant import Participant
from airflow_eos.core.protocol.promise import OperatorRuling, Promise
from airflow_eos.errors import (
    CheckpointFormatError,
    ConfigurationError,
    DeliveryError,
    OwnershipError,
    StoreError,
)
from airflow_eos.kinds.sql import participant as ledger
from airflow_eos.kinds.sql.participant import GENERATION
from tests.integration.kept.keeping import decided
from tests.integration.postgres.proxy import LosingProxy
from tests.integration.sql.world import SqlWorld, rows, written
from tests.support.pipelines import owner_at, require_at

THEIRS = PreparedWork("kafka", "totals", "theirs", 5, "0" * 32, 0, None, {})


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


@pytest.mark.parametrize("reply", ["lost after it was done", "lost before it arrived"])
def test_a_commit_whose_reply_is_lost_is_found_out(world: SqlWorld, reply: str):
    work = world.prepare()
    with LosingProxy(world.server.port) as proxy:
        ours = world.participant(**world.through(proxy.port))
        proxy.lose(world.commits, after=reply.startswith("lost after"))
        assert ours.commit([work]) == became([work], Outcome.COMMITTED)
        assert proxy.lost == 1
        ours.close()
    assert world.seen() == [1, 2, 3]


def lose_nothing(world: SqlWorld) -> None:
    """The server dies in the middle, and comes back while it is asked."""
    ours, works = world.participant(), [world.prepare(1), world.prepare(2, task=1)]
    ours.commit(works[:1])
    world.halt()
    back = threading.Timer(0.5, world.server.start)
    back.start()
    assert ours.outcome(works) == {
        works[0].identity: Outcome.COMMITTED,
        works[1].identity: Outcome.OPEN,
    }
    back.join()
    assert ours.commit(works) == became(works, Outcome.COMMITTED)
    assert world.seen() == [1, 2]


@pytest.mark.long
def test_a_server_that_is_gone_is_no_answer(world: SqlWorld):
    ours, work = world.participant(answer_within=timedelta(seconds=1)), world.prepare()
    world.halt()
    try:
        for asked in (lambda: ours.outcome([work]), lambda: ours.commit([work]), ours.open):
            with pytest.raises(StoreError, match="Nothing was guessed"):
                asked()
    finally:
        world.server.start()
    assert ours.commit([work]) == became([work], Outcome.COMMITTED)


def test_a_prefix_is_no_beginning_of_another_and_a_participant_no_other(world: SqlWorld):
    work = world.prepare()
    longer, shorter = world.prefixed(f"{world.tag}-2"), world.prefixed(world.tag[:-1])
    for changes in (longer, shorter, {"name": "totals"}):
        another = world.participant(**changes)
        assert another.open() == ()
        with pytest.raises(CheckpointFormatError):
            another.abort([work.identity])
    theirs = world.prepare(4, name="orders-2")
    ours = world.participant()
    assert [each.key for each in ours.open()] == [work.key]
    assert ours.outcome([work]) == became([work], Outcome.OPEN)
    assert world.participant(name="orders-2").abort([theirs.identity]) == {theirs.identity: True}


@pytest.mark.parametrize("prefix", ["", "a.b", "a b", "x" * 81])
def test_a_prefix_that_cannot_be_told_from_another_is_refused(world: SqlWorld, prefix: str):
    with pytest.raises(ConfigurationError, match=next(iter(world.prefixed(prefix)))):
        replace(world.sink, **world.prefixed(prefix))


def test_it_is_reached_by_its_name_or_kind_and_refused_without(world: SqlWorld):
    ours, work = world.participant(), world.prepare()
    for how in world.ways:
        reached = connect(ours.members, how, store=world.store)
        assert reached.outcome([work]) == became([work], Outcome.OPEN)
        assert reached.members[0].is_at(ours.members[0])
        reached.close()
    with pytest.raises(ConfigurationError, match=r"orders.*give how to reach its database"):
        connect(ours.members, {})


def test_below_the_floor_nothing_is_done_and_nothing_concluded(world: SqlWorld):
    ours, work = world.participant(), world.prepare()
    world.sql(f"UPDATE {world.names} SET generation = 2 WHERE name = '{world.tag}.orders'")
    assert ours.commit([work]) == became([work], Outcome.UNKNOWN)
    assert world.seen() == []
    ours.abort([work.identity])
    assert ours.outcome([work]) == became([work], Outcome.UNKNOWN)
    assert ours.commit([work]) == became([work], Outcome.UNKNOWN)


@pytest.mark.long
def test_old_witnesses_go_and_the_floor_moves_before_them(
    world: SqlWorld, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ledger, "KEPT_BATCHES", 2)
    works: list[PreparedWork] = []
    for batch in range(5):
        ours = world.participant()  # of a run of its own, as availableNow makes them
        ours.claim(owner_at("/a"))
        works.append(world.prepare(batch))
        ours.claim(owner_at("/a"))
        ours.note(decided(batch, works=(works[-1], THEIRS)), owner_at("/a"))
        ours.commit(works[-1:])
    told = ours.outcome(works)
    assert [told[work.identity].name for work in works] == [*["UNKNOWN"] * 3, *["COMMITTED"] * 2]
    assert world.seen() == [0, 1, 2, 3, 4]
    require_owner(ours, "/a", 5, b4=(decided(4, works=(works[4],)),))
    require_owner(ours, "/a", 5, b4=(decided(4, works=(works[0],)),))  # pruned: nothing is said


def a_clock_decides_nothing(
    world: SqlWorld, monkeypatch: pytest.MonkeyPatch, our_tables: str
) -> None:
    """The floor was a time: once, 1,000 batches of a clock that was ahead left it in the future."""
    monkeypatch.setattr(ledger, "KEPT_BATCHES", 2)
    ours = world.participant()
    ours.claim(owner_at("/a"))
    for batch in range(4):  # the clock is ahead
        work = world.prepare(batch)
        ours.note(decided(batch, works=(work,)), owner_at("/a"))
        ours.commit([work])
    found = world.sql(
        f"SELECT column_name FROM information_schema.columns WHERE {our_tables} "
        "AND column_name LIKE '%ms'"
    )
    assert found == [], "no time stands where it decides anything"
    work = world.prepare(9)
    ours.require_decidable([work])
    assert ours.outcome([work]) == became([work], Outcome.OPEN)
    assert ours.commit([work]) == became([work], Outcome.COMMITTED)
    assert ours.outcome([work]) == became([work], Outcome.COMMITTED)


def test_a_detail_of_another_release_is_refused(world: SqlWorld):
    ours, work = world.participant(), world.prepare()
    strange = msgspec.structs.replace(work, detail={"form": "tape"})
    for asked in (ours.check, ours.commit, ours.outcome):
        with pytest.raises(CheckpointFormatError, match="newer release"):
            asked([strange])
    assert msgspec.json.decode(msgspec.json.encode(work), type=PreparedWork) == work


@pytest.mark.long
def test_the_first_checkpoint_owns_the_name(world: SqlWorld):
    ours = world.participant()
    ours.claim(owner_at("/a"))
    world.participant().claim(owner_at("/b"))
    require_owner(ours, "/a")
    with pytest.raises(OwnershipError, match=r"belongs to the checkpoint /a, not to /b.*to NULL"):
        require_owner(ours, "/b")
    require_owner(world.participant(name="totals"), "/b")


def test_an_older_copy_of_the_checkpoint_is_refused(world: SqlWorld):
    ours = world.participant()
    ours.claim(owner_at("/a"))
    for _ in range(2):
        ours.note(decided(7), owner_at("/a"))
    world.participant().note(decided(3, "c"), owner_at("/a"))  # a sleeper's
    require_owner(ours, "/a", 7, b7=(decided(7),))
    require_owner(ours, "/a", 8, b7=(decided(7),))
    for planned, others in ((7, {"b7": (decided(7, "b"),)}), (6, {})):
        with pytest.raises(OwnershipError, match=r"decision of batch 7.*older copy"):
            require_owner(ours, "/a", planned, **others)


def test_a_database_that_forgot_what_was_delivered_is_refused(world: SqlWorld):
    """A backup that was put back, or a standby that lagged: nobody delivers those rows again."""
    ours, works = world.participant(), [world.prepare(1), world.prepare(2, task=1)]
    decision = decided(7, works=(*works, THEIRS))  # another participant's is none of ours to miss
    ours.commit(works)
    require_owner(ours, "/a", 8, b7=(decision,))
    world.lose_witness(works[1].key)
    with pytest.raises(OwnershipError, match=rf"1 of its rows any more.*{works[1].key}.*0 rows"):
        require_owner(ours, "/a", 8, b7=(decision,))
    require_owner(ours, "/a", 7, b7=(decision,))  # in flight: recovery asks for outcomes
    world.put_witness(works[1].key)
    require_owner(ours, "/a", 8, b7=(decision,))


def test_witnesses_that_are_gone_do_not_say_that_nothing_was_committed(world: SqlWorld):
    """Somebody emptied a table that grows, or dropped it: the batch in flight came twice."""
    ours, works = world.participant(), [world.prepare(1), world.prepare(2, task=1)]
    ours.commit(works)
    (mark,) = (each.address["mark"] for each in ours.members)
    world.sql(f"DELETE FROM {world.works} WHERE name = '{world.tag}.orders'")
    for asked in (ours.outcome, ours.commit, world.participant().outcome):
        with pytest.raises(StoreError, match=r"witnesses of the .* are gone") as refused:
            asked(works)
    assert mark in refused.value.remedies[1].change
    for key in (works[0].key, works[1].key, mark):  # as it says
        world.put_witness(key)
    assert set(world.participant().outcome(works).values()) == {Outcome.COMMITTED}


def test_at_least_once_is_visible_at_once(world: SqlWorld):
    writer = world.sink.opened(0, 0, transactional=False)
    writer.write(rows(1, 2))
    assert world.seen() == []
    assert writer.prepare("0" * 32) is None
    assert (world.seen(), world.participant().open()) == ([1, 2], ())


def require_refused_before_the_decision(
    world: SqlWorld, made: Sequence[str], good: Any, bad: Any
) -> None:
    """By the task that brings the bad value to the table, after one that brought the good one."""
    table = f"{world.tag}_t"
    for statement in made:
        world.sql(statement.format(table))
    sink = world.sink_to(table)
    ours = sink.connect(timedelta(seconds=1))
    ours.commit([written(sink, id=[1], v=[good])])
    before = world.holdings()
    with pytest.raises(DeliveryError, match=r"(?i)nothing was made visible"):
        written(sink, id=[2], v=[bad])
    assert world.sql(f"SELECT id FROM {table}") == [(1,)]
    assert (ours.open(), world.holdings()) == ((), before)
