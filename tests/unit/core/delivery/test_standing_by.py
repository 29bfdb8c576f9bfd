"""When a driver that stands by takes the term, and what it takes for the end of the one before."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import msgspec
import pytest
from typer.testing import CliRunner

from airflow_eos.cli.app import app
from airflow_eos.core.checkpoint import (
    CheckpointStore,
    DrainRequest,
    StartedBy,
    drain_newest,
    newest_term,
    request_drain,
    standing_request,
    take_term,
    write_heartbeat,
)
from airflow_eos.core.checkpoint import standby as records
from airflow_eos.core.checkpoint.backend import HEARTBEAT, STANDBYS, WATCHDOG, standby_path
from airflow_eos.core.checkpoint.drain import (
    BY_AIRFLOW,
    BY_STANDBY,
    Beginning,
    clear_drain,
    request_to,
)
from airflow_eos.core.checkpoint.heartbeat import STARTED_BY, Phase
from airflow_eos.core.checkpoint.liveness import (
    SignOfLife,
    note_process_end,
    process_mark,
    process_state,
    read_sign,
)
from airflow_eos.core.checkpoint.standby import (
    STANDBYS_KEPT,
    Standby,
    StandbyReading,
    hand_over,
    remove_standby,
    standby_of,
    standbys,
    write_standby,
)
from airflow_eos.core.checkpoint.terms import Tenure
from airflow_eos.core.checkpoint.watchdog_record import missed_looks
from airflow_eos.core.delivery import standby as waits
from airflow_eos.core.delivery import workers
from airflow_eos.core.delivery.beats import Handover
from airflow_eos.core.delivery.standby import (
    MadeReady,
    StandingBy,
    Turn,
    stand_by,
    warm_up,
    whose_turn,
)
from airflow_eos.core.protocol.decision import encode
from airflow_eos.errors import (
    CalledOffError,
    CheckpointFormatError,
    ConfigurationError,
    OvertakenError,
    OwnershipError,
    StoreError,
)
from tests.support.beats import beside, heartbeat, standby
from tests.support.clocks import clock_of

LIVES, SILENT, UNTOLD = ("it beat",), (), None
PERSON = "cli ops"


def asked(by: str) -> DrainRequest:
    return DrainRequest(term=1, requested_by=by, reason="x", requested_at_ms=0)


def ended(end: str, by: str | None = None):
    phase: Phase = "stopped" if end in ("finished", "drained") else "failed"
    return heartbeat(phase, term=1, end=end, drained_by=by)


def turn(beat, signs=LIVES, *, term=1, gone=None, by=None, has_stood_by=True) -> Turn:
    request = None if by is None else asked(by)
    sign = SignOfLife(beat, term)
    return whose_turn(sign, signs, gone=gone, request=request, has_stood_by=has_stood_by).turn


BEAT = heartbeat(term=1)


@pytest.mark.parametrize(
    ("expected", "beat", "told"),
    [
        (Turn.TAKE, None, {"term": 0}),
        (Turn.WAIT, BEAT, {}),
        (Turn.WAIT, BEAT, {"signs": UNTOLD}),
        (Turn.TAKE, BEAT, {"signs": SILENT}),
        (Turn.TAKE, BEAT, {"gone": "no such process"}),
        (Turn.TAKE, BEAT, {"gone": "no such process", "signs": UNTOLD}),
        (Turn.WAIT, BEAT, {"by": PERSON}),
        (Turn.LEAVE, BEAT, {"signs": SILENT, "by": PERSON}),
        (Turn.LEAVE, BEAT, {"gone": "no such process", "by": PERSON}),
        (Turn.TAKE, BEAT, {"signs": SILENT, "by": BY_AIRFLOW}),
        (Turn.TAKE, BEAT, {"signs": SILENT, "by": BY_STANDBY}),
        (Turn.TAKE, ended("failed"), {}),
        (Turn.TAKE, ended("superseded"), {}),
        (Turn.TAKE, ended("drained", BY_AIRFLOW), {}),
        (Turn.TAKE, ended("drained", BY_STANDBY), {}),
        (Turn.LEAVE, ended("drained", PERSON), {}),
        (Turn.LEAVE, ended("failed", PERSON), {}),
        (Turn.LEAVE, ended("failed"), {"by": PERSON}),
        (Turn.LEAVE, ended("drained", BY_STANDBY), {"by": PERSON}),
        (Turn.TAKE, ended("failed", BY_AIRFLOW), {}),
        (Turn.LEAVE, ended("drained"), {}),
        (Turn.LEAVE, ended("finished"), {}),
        (Turn.TAKE, ended("finished"), {"has_stood_by": False}),
        (Turn.TAKE, ended("drained", PERSON), {"has_stood_by": False}),
        (Turn.TAKE, BEAT, {"signs": SILENT, "by": PERSON, "has_stood_by": False}),
        # a newer driver has taken its term, and has not beaten yet
        (Turn.WAIT, ended("failed"), {"term": 2, "signs": UNTOLD}),
        (Turn.TAKE, BEAT, {"term": 2, "signs": SILENT}),
    ],
)
def test_whose_turn_it_is(expected, beat, told):
    assert turn(beat, **told) is expected


# --- what it sees ---------------------------------------------------------------------------------


class World:
    """A clock that goes on while somebody sleeps, and what happens at some of its moments."""

    def __init__(self, store: CheckpointStore) -> None:
        self.store, self.now, self.beats = store, 0.0, True
        self.at: dict[float, Callable[[], object]] = {}
        self.beat = heartbeat(term=1)
        take_term(store, taken_by="first")
        write_heartbeat(store, self.beat)

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < 10_000, "it waits for ever"
        for moment in [each for each in self.at if each <= self.now]:
            self.at.pop(moment)()
        if self.beats and self.now * 1000 >= self.beat.beat_at_ms + self.beat.interval_ms:
            self.say(beat_at_ms=int(self.now * 1000))

    def say(self, **changes) -> None:
        self.beat = msgspec.structs.replace(self.beat, **changes)
        write_heartbeat(self.store, self.beat)

    def stops(self, **changes) -> None:
        self.beats = False
        if changes:
            self.say(**changes)

    def standing(self, still_wanted=lambda: None) -> StandingBy:
        return StandingBy(
            self.store,
            application_id="app-2",
            still_wanted=still_wanted,
            sleep=self.sleep,
            clock=self.clock,
        )


@pytest.fixture
def store(tmp_path) -> CheckpointStore:
    return CheckpointStore.open(tmp_path)


@pytest.fixture
def world(store) -> World:
    return World(store)


def test_a_driver_that_falls_silent_is_followed_and_not_before_three_of_its_intervals(world):
    world.at[20.0] = world.stops
    assert world.standing().until_our_turn() == 1
    assert 24.0 <= world.now < 29.0
    assert newest_term(world.store) == 1, "it took something while it stood by"


def test_a_process_of_this_machine_that_is_gone_is_noticed_at_once(world):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        world.say(pid=process.pid, process=process_mark(process.pid))

        def killed() -> None:
            world.stops()
            process.kill()
            process.wait()

        world.at[20.0] = killed
        assert world.standing().until_our_turn() == 1
    assert world.now < 20.5


def test_the_end_of_a_driver_that_hands_over_is_seen_within_moments_of_it(world, monkeypatch):
    """The fewer rows wait meanwhile. Before it was asked, a store bills each look."""

    looks: list[float] = []

    def look(store: CheckpointStore) -> SignOfLife:
        looks.append(world.now)
        return read_sign(store)

    monkeypatch.setattr(waits, "read_sign", look)
    world.at[20.0] = lambda: request_drain(
        world.store, requested_by=BY_STANDBY, reason="upgrade", term=1
    )
    world.at[24.05] = lambda: world.stops(phase="stopped", end="drained", drained_by=BY_STANDBY)
    assert world.standing().until_our_turn() == 1
    assert max(after - before for before, after in pairwise(looks) if before > 21.0) < 0.2
    assert min(after - before for before, after in pairwise(looks) if after < 20.0) > 0.4


def test_what_a_start_needs_is_made_while_a_driver_that_hands_over_still_ends(world):
    """And not while nobody has asked it to: it may drive for weeks."""
    made: list[float] = []
    world.at[20.0] = lambda: request_drain(
        world.store, requested_by=BY_STANDBY, reason="upgrade", term=1
    )
    world.at[24.0] = lambda: world.stops(phase="stopped", end="drained", drained_by=BY_STANDBY)

    def make() -> str | None:
        made.append(world.now)
        return None if len(made) > 2 else ""

    said: list[bool] = []
    world.at[19.9] = world.at[23.9] = lambda: said.append(standbys(world.store)[0].is_ready)
    assert world.standing().until_our_turn(make) == 1
    assert 20.0 <= made[0] < 22.0
    assert made[-1] < 24.0
    assert said == [False, True], "the driver that hands over waits until it is told"


def test_why_a_standby_could_not_go_on_is_said_and_still_told_once_the_driver_goes_on(world):
    """Who has asked for the hand-over reads it after the driver has taken that back."""
    said: list[tuple[bool, str]] = []

    def look() -> None:
        said.extend((each.is_ready, each.reason) for each in standbys(world.store))

    world.at[20.0] = lambda: request_drain(
        world.store, requested_by=BY_STANDBY, reason="upgrade", term=1
    )
    world.at[24.0] = lambda: clear_drain(world.store, term=2, submission=None)
    world.at[23.0] = world.at[30.0] = look
    world.at[40.0] = lambda: world.stops(phase="failed", end="failed")
    world.standing().until_our_turn(lambda: "TopicError: gone")
    assert said == [(False, "TopicError: gone")] * 2


def test_what_a_standby_could_not_do_once_is_not_said_of_the_next_hand_over(world):
    """Its checks may take long: the driver would take back what can be done by now."""
    said: list[tuple[int, str]] = []

    def ask() -> None:
        request_drain(world.store, requested_by=BY_STANDBY, reason="upgrade", term=1)

    def look() -> str:
        [each] = standbys(world.store)
        said.append((each.beat, each.reason))
        return "TopicError: gone"

    world.at[20.0] = world.at[30.0] = ask
    world.at[24.0] = lambda: clear_drain(world.store, term=2, submission=None)
    world.at[25.0] = said.clear
    world.at[40.0] = lambda: world.stops(phase="failed", end="failed")
    world.standing().until_our_turn(look)
    assert said[0][1] == ""
    assert said[1] == (said[0][0] + 1, "TopicError: gone")


def test_a_word_that_the_store_refused_is_said_again_at_the_next_look(world, monkeypatch):
    """A driver that hands over waits for it, ten seconds at most."""

    refused: list[float] = []

    def write(store: CheckpointStore, said: Standby) -> None:
        if said.is_ready and not refused:
            refused.append(world.now)
            raise StoreError("too many requests")
        if said.is_ready:
            arrived.append(world.now)
        write_standby(store, said)

    arrived: list[float] = []
    monkeypatch.setattr(waits, "write_standby", write)
    world.at[20.0] = lambda: request_drain(
        world.store, requested_by=BY_STANDBY, reason="upgrade", term=1
    )
    world.at[24.0] = lambda: world.stops(phase="stopped", end="drained", drained_by=BY_STANDBY)
    assert world.standing().until_our_turn() == 1
    assert arrived[0] < refused[0] + 0.5


def test_who_was_ready_for_another_hand_over_is_not_ready_for_the_next(world):
    """Of two that stood by the other was quicker: what was asked then is old by now."""
    said: list[tuple[int, bool]] = []

    def look() -> None:
        said.extend((each.behind, each.is_ready) for each in standbys(world.store))

    def overtaken() -> None:
        take_term(world.store, taken_by="other")
        world.say(term=2, phase="waiting")

    world.at[20.0] = lambda: request_drain(
        world.store, requested_by=BY_STANDBY, reason="upgrade", term=1
    )
    world.at[22.0] = world.at[30.0] = look
    world.at[24.0] = overtaken
    world.at[40.0] = lambda: world.stops(phase="failed", end="failed")
    assert world.standing().until_our_turn() == 2
    assert said == [(1, True), (2, False)]


class Answers:
    """What ``MadeReady`` makes, one after the other; those that are open."""

    def __init__(self, *given: object) -> None:
        self.given, self.open = iter(given), list[object]()

    def __call__(self) -> Answers.Held:
        answer = next(self.given)
        if isinstance(answer, Exception):
            raise answer
        return Answers.Held(self, answer)

    class Held:
        def __init__(self, all_of_them: Answers, value: object) -> None:
            self.all, self.value = all_of_them, value
            self.all.open.append(value)

        def close(self) -> None:
            self.all.open.remove(self.value)


def test_what_was_made_ready_is_made_anew_once_it_is_old_or_was_taken():
    """The last batch of the driver may take hours, and another may be quicker than we."""
    now, answers = 0.0, Answers(*range(9))
    ready = MadeReady(answers, workers.WarmUps(), clock=lambda: now)
    ready.renew()
    now = 5.0
    ready.renew()
    first = ready.take()
    assert first.value == 0
    first.close()
    assert ready.take().value == 1, "it was taken before"
    ready.renew()
    now = 60.0
    ready.renew()
    assert ready.take().value == 3, "it was as old as the wait"
    ready.renew()
    now = 120.0
    assert ready.take().value == 5, "it was as old as the wait, and nobody renewed it"
    ready.renew()
    ready.close()
    assert answers.open == [1, 3, 5], "what nobody took is left open, or what was taken is not"


def test_what_cannot_be_made_ready_yet_is_told_once_the_turn_has_come():
    """No answer while the driver still ends says nothing of the start."""
    answers = Answers(StoreError("away"), "ready", StoreError("still away"))
    ready = MadeReady(answers, workers.WarmUps(), clock=lambda: 0.0)
    assert ready.renew() == "StoreError: away"
    assert ready.renew() == "StoreError: away", "all the systems were asked again at once"
    assert ready.take().value == "ready"
    with pytest.raises(StoreError, match="still away"):
        ready.take()


def test_nothing_is_ready_beside_a_warm_up_and_none_begins_once_the_driver_ends():
    """A driver that hands over goes on until all is ready: its rows would wait for the warm-up."""
    said: list[str | None] = []

    def act() -> None:
        said.extend((ready.renew(), ready.renew()))

    warm_ups = workers.WarmUps(act, act)
    ready = MadeReady(Answers("ready"), warm_ups, clock=lambda: 0.0)
    warm_ups.run(otherwise=pytest.fail)
    assert said == ["", ""], "neither ready nor refused"
    assert not warm_ups, "one more is to be done"
    assert ready.renew() is None


def test_a_start_ends_warm_ups_where_nobody_had_asked_the_driver_to_end():
    warm_ups = workers.WarmUps(pytest.fail)
    MadeReady(Answers("ready"), warm_ups).take()
    assert not warm_ups


def test_what_its_task_saw_of_the_end_of_a_process_elsewhere_is_noticed_at_once(world):
    us = StartedBy(dag_id="d", task_id="t", run_id="r", map_index=-1, submission="s1")
    world.say(started_by=us)
    world.at[10.0] = lambda: note_process_end(world.store, "s0", "of another start")

    def died() -> None:
        world.stops()
        note_process_end(world.store, "s1", "killed")

    world.at[20.0] = died
    assert world.standing().until_our_turn() == 1
    assert 20.0 <= world.now < 21.0


def test_a_driver_that_a_person_stops_is_not_followed(world):
    world.at[20.0] = lambda: world.stops(phase="stopped", end="drained", drained_by=PERSON)
    with pytest.raises(CalledOffError, match="nobody is needed"):
        world.standing().until_our_turn()


@pytest.mark.parametrize("error", [StoreError, CheckpointFormatError])
def test_a_store_that_does_not_answer_is_no_end_of_a_driver(world, monkeypatch, error):

    def away(store):
        if 10.0 <= world.now < 30.0:
            raise error("away, or damaged")
        return read_sign(store)

    monkeypatch.setattr(waits, "read_sign", away)
    world.at[40.0] = lambda: world.stops(phase="failed", end="failed")
    assert world.standing().until_our_turn() == 1
    assert world.now >= 40.0


OF_ANOTHER_RELEASE = b'{"format_version": 9, "beat": %d}'
DAMAGED = [b"", b"\0" * 300, b'{"format_ver', OF_ANOTHER_RELEASE % 1, None]


@pytest.mark.parametrize("at", [0.0, 20.0], ids=["before it came", "while it stood by"])
@pytest.mark.parametrize("left", DAMAGED, ids=["empty", "NULs", "cut off", "newer", "removed"])
def test_a_standby_behind_a_damaged_heartbeat_takes_over_once_term_and_log_stand_still(
    world, left, at
):
    """A power cut: the driver is dead, and nobody writes its heartbeat anew."""

    def dies() -> None:
        world.stops()
        world.store.delete([HEARTBEAT])
        if left is not None:
            world.store.put(HEARTBEAT, left)

    world.at[at] = dies
    if not at:
        world.sleep(0.0)
    assert world.standing().until_our_turn() == 1
    assert at + 4.0 <= world.now < at + 9.0


def test_a_heartbeat_that_cannot_be_read_now_and_then_does_not_begin_the_silence_anew(world):
    """A store that gives another answer at each look: none of them says that the driver lives."""
    sound, torn = encode(world.beat), b""
    world.stops()
    for n in range(1, 40):
        world.at[n * 0.7] = partial(world.store.put, HEARTBEAT, torn if n % 2 else sound)
    assert world.standing().until_our_turn() == 1
    assert world.now < 9.0


def test_a_driver_of_another_release_that_lives_is_not_taken_for_dead(world):
    """What it writes cannot be read here; that it changes can be seen."""
    world.stops()
    for n in range(30):
        world.at[2.0 * n] = partial(world.store.put, HEARTBEAT, OF_ANOTHER_RELEASE % n)
    assert world.standing().until_our_turn() == 1
    assert world.now >= 58.0


@pytest.mark.parametrize("beat", ["the one before's", "none", "damaged"])
def test_a_person_who_stops_a_driver_that_has_not_beaten_yet_is_heard_by_who_stands_by(world, beat):
    take_term(world.store, taken_by="second")
    world.stops()
    if beat != "the one before's":
        world.store.delete([HEARTBEAT])
    if beat == "damaged":
        world.store.put(HEARTBEAT, b"")
    world.at[3.0] = lambda: drain_newest(world.store, requested_by=PERSON, reason="x")
    with pytest.raises(CalledOffError, match="cli ops had asked it to end"):
        world.standing().until_our_turn()


@pytest.mark.parametrize("comes_first", [True, False])
def test_what_a_person_asks_for_once_a_standby_has_come_calls_it_off_however_the_driver_ends(
    world, comes_first
):
    """Its examination takes a minute: the driver may be gone before the standby's first look."""
    comes = world.standing() if comes_first else None
    drain_newest(world.store, requested_by=PERSON, reason="maintenance")
    world.stops(pid=2**22 + 1, process=process_mark(os.getpid()))
    if comes is None:  # who comes later is wanted
        assert world.standing().until_our_turn() == 1
        return
    with pytest.raises(CalledOffError, match="cli ops had asked it to end"):
        comes.until_our_turn()


def test_who_slept_himself_has_not_seen_the_driver_be_silent(world):
    """SIGSTOP'd, or on a machine that was suspended: a long pause between two looks is one look."""
    world.at[10.0] = lambda: setattr(world, "now", world.now + 3600)
    world.at[3630.0] = lambda: world.stops(phase="failed", end="failed")
    assert world.standing().until_our_turn() == 1
    assert world.now >= 3630.0


def test_a_start_that_was_asked_to_end_stands_by_no_more(world, monkeypatch):
    from airflow_eos.core.delivery.start import require_not_cancelled

    us = StartedBy(dag_id="d", task_id="t", run_id="r", map_index=-1, submission="s2")
    monkeypatch.setenv(STARTED_BY, us.as_text())
    world.at[20.0] = lambda: request_drain(
        world.store, requested_by=BY_AIRFLOW, reason="cleared", submission="s2"
    )
    standing = world.standing(lambda: require_not_cancelled(world.store))
    with pytest.raises(CalledOffError, match="asked this start of the app to end"):
        stand_by(standing, examine=lambda: None, start=lambda _: None, sleep=world.sleep)
    said = standby_of(world.store, "s2")
    assert (said.end, standbys(world.store)) == ("called off", ())


# --- who starts -----------------------------------------------------------------------------------


def follow(world: World, start, examine=lambda: None):
    return stand_by(world.standing(), examine=examine, start=start, sleep=world.sleep)


def test_of_two_that_stand_by_one_drives_and_the_other_stands_by_behind_it(world):
    world.at[20.0] = world.stops
    overtaken: list[Tenure] = []

    def start(after: int) -> str:
        if not overtaken:  # the other was quicker
            overtaken.append(take_term(world.store, taken_by="other", after=after))
            world.beats = True
            world.say(term=2)
            world.at[world.now + 20] = lambda: world.stops(phase="failed", end="failed")
        return str(take_term(world.store, taken_by="us", after=after).term.number)

    assert follow(world, start) == "3"
    assert standbys(world.store) == (), "it drives, and says that it stands by"


def test_only_the_term_after_the_one_that_it_saw_is_taken(store):
    take_term(store, taken_by="first")
    take_term(store, taken_by="second")
    with pytest.raises(OvertakenError, match="term 2 has started since 1"):
        take_term(store, taken_by="late", after=1)
    assert newest_term(store) == 2


def test_an_app_that_does_not_fit_says_so_and_the_one_that_runs_goes_on(world):
    looks = []

    def examine() -> None:
        looks.append(world.now)
        raise OwnershipError("another pipeline's")

    world.at[20.0] = world.stops
    with pytest.raises(OwnershipError):
        follow(world, lambda _: pytest.fail("it started"), examine)
    assert len(looks) == 3, "one look at a pipeline that goes on is no answer"
    assert newest_term(world.store) == 1
    assert standbys(world.store) == ()


def test_what_a_standby_has_asked_is_asked_again_by_another_start_when_its_turn_comes(world):
    """The answers are as old as the wait; what the first start opened is closed meanwhile."""
    said: list[str] = []

    class Asked(SimpleNamespace):
        def close(self) -> None:
            said.append(f"{self.name} closed")

    def examined(began: Beginning | None) -> Any:
        name = "first" if began is None else "again"
        said.append(f"{name} examined")
        ahead = SimpleNamespace(ask_ahead=lambda start: said.append(f"{start.name} asks ahead"))
        spark = SimpleNamespace(sparkContext=SimpleNamespace(applicationId="app-2"))
        return Asked(
            name=name,
            store=world.store,
            began=Beginning.now(world.store),
            spark=spark,
            guarantee=ahead,
            sink=MagicMock(),
            workers_answer=lambda: said.append(f"{name} has workers"),
        )

    def admitted(start: Any) -> None:
        said.append(f"{start.name} admitted")

    def runs(start: Any, after: int) -> str:
        return f"{start.name} runs after {after}"

    world.stops(phase="failed", end="failed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waits, "warm_up", lambda start, **_: said.append(f"{start.name} warms"))
        patch.setattr(waits, "kept_warm", lambda *_, **__: nullcontext())
        started = waits.follow(
            examined,
            admitted,
            runs,
            lambda _store: None,
        )
    assert started == "again runs after 1"
    assert said == [
        *("first examined", "first has workers", "first admitted", "first asks ahead"),
        *("first warms", "first closed"),
        *("again examined", "again admitted", "again asks ahead"),
    ]


# --- handing over ---------------------------------------------------------------------------------


def test_nobody_is_asked_to_end_where_nobody_stands_by(world):
    standing = world.standing()
    standing._interval_s = 0.2
    standing._said = msgspec.structs.replace(standing._said, interval_ms=200)
    standing._say(1, "")  # one that has said so once, and died since
    with pytest.raises(ConfigurationError, match="No driver stands by"):
        hand_over(world.store, requested_by=PERSON, reason="upgrade")
    assert request_drain(world.store, requested_by="x", reason="x", term=1).requested_by == "x"


def lives(world: World, behind: int) -> Standby:
    return standby(behind=behind)


@contextmanager
def stands_by(world: World, behind: int) -> Iterator[None]:
    """One that says so again and again, and drives once the driver was asked to hand over."""
    said = lives(world, behind)

    def say(ended: threading.Event) -> None:
        n = 0
        while not ended.wait(0.02):
            n += 1
            write_standby(world.store, msgspec.structs.replace(said, beat=n))
            request = standing_request(world.store)
            if request is not None and newest_term(world.store) == 1:
                take_term(world.store, taken_by="s2", after=1)
                world.say(term=2)

    write_standby(world.store, said)
    with beside(say):
        yield


def test_handed_over_it_says_so_once_the_other_drives(world):
    us = StartedBy(dag_id="d", task_id="t", run_id="r", map_index=-1, submission="s1")
    world.say(started_by=us)
    with stands_by(world, behind=1):
        done = CliRunner().invoke(app, ["handover", world.store.location, "--wait=300", "--json"])
    assert done.exit_code == 0, done.output
    assert msgspec.json.decode(done.output)["term"] == 2
    request = standing_request(world.store)
    assert (request.term, request.requested_by) == (1, BY_STANDBY)
    assert "hands over to driver app-2 on h" in request.reason
    clear_drain(world.store, term=2, submission=None)  # as the next driver does
    assert standing_request(world.store) is None
    assert request_to(world.store, "s1").requested_by == BY_STANDBY


def test_a_driver_whose_standby_was_killed_takes_the_hand_over_back_at_once(world):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        said = standby(behind=1, pid=process.pid, process=process_mark(process.pid))
        write_standby(world.store, said)
        handover = Handover(world.store)
        now = time.monotonic()
        assert handover.step(1, now) == "wait", "it lives, and is not ready yet"
        process.kill()
        process.wait()
        assert handover.step(1, now) == "take back"


def test_one_that_stands_by_behind_another_driver_is_handed_nothing(world):
    with stands_by(world, behind=0), pytest.raises(ConfigurationError, match="No driver stands by"):
        hand_over(world.store, requested_by=PERSON, reason="upgrade")
    assert standing_request(world.store) is None


def test_what_a_person_has_stopped_is_not_handed_over(world, monkeypatch):
    request_drain(world.store, requested_by=PERSON, reason="maintenance", term=1)
    said = lives(world, 1)
    write_standby(world.store, said)
    monkeypatch.setattr(records, "living_standbys", lambda _: (said,))
    with pytest.raises(ConfigurationError, match="cli ops has asked the driver of term 1 to stop"):
        hand_over(world.store, requested_by="cli ada", reason="upgrade")


def test_what_a_person_stops_while_one_that_comes_is_examined_stays_down(world):
    """A JVM that comes up after a fail-over is examined for a minute; it does not start anew."""
    comes = world.standing()
    world.stops(phase="stopped", end="drained", drained_by=PERSON)
    with pytest.raises(CalledOffError, match="cli ops had asked it to end"):
        comes.until_our_turn()
    assert world.standing().until_our_turn() == 1  # who comes later is wanted


def test_a_person_who_stops_what_is_being_handed_over_is_heard(world):
    """The batch that runs may take hours: what is asked for meanwhile is no second hand-over."""
    request_drain(world.store, requested_by=BY_STANDBY, reason="upgrade", term=1)
    found = request_drain(world.store, requested_by=PERSON, reason="maintenance", term=1)
    assert found == standing_request(world.store)
    assert found.requested_by == PERSON
    world.at[24.0] = lambda: world.stops(phase="stopped", end="drained", drained_by=BY_STANDBY)
    with pytest.raises(CalledOffError, match="cli ops had asked it to end"):
        world.standing().until_our_turn()


def test_workers_are_asked_until_the_turn_has_come_whatever_one_question_ends_with(monkeypatch):
    """Spark ends those that were idle for a minute; a cluster may have none just now."""
    monkeypatch.setattr(workers, "_WARM_S", 0.01)
    asked_thrice, count = threading.Event(), 0

    def check() -> None:
        nonlocal count
        count += 1
        if count == 3:
            asked_thrice.set()
        if count == 2:
            raise ConfigurationError("no executor is free")

    done: list[int] = []

    def refused() -> None:
        done.append(count)
        raise ConfigurationError("no executor is free")

    with workers.kept_warm(check, first=workers.WarmUps(*[refused] * 3)):
        while not asked_thrice.wait(1):
            assert any(each.name == "airflow-eos-warm" for each in threading.enumerate())
    over = count
    assert not threading.Event().wait(0.1)
    assert count <= over + 1
    assert done == [0, 0, 0], "what warms the driver comes first, whatever one of it ends with"


def test_a_long_batch_warms_a_standby_once_and_leaves_the_cluster_to_who_runs(monkeypatch):
    monkeypatch.setattr(workers, "_FIRST_S", 0.0)
    monkeypatch.setattr(workers, "_WARM_S", 0.01)
    asked, done = threading.Event(), []

    def a_long_one() -> None:
        done.append("a long one")

    with workers.kept_warm(asked.set, first=workers.WarmUps(*[a_long_one] * 3)):
        assert asked.wait(300)
    assert done == ["a long one"]


def test_a_warm_up_that_runs_is_seen_until_it_has_ended_also_where_it_fails():
    """A standby is not ready beside it: it takes the processor from who delivers."""
    seen: list[tuple[bool, bool]] = []

    def act() -> None:
        warm_ups.end()
        seen.append((warm_ups.is_running, bool(warm_ups)))
        raise ConfigurationError("no executor is free")

    warm_ups = workers.WarmUps(act, act)
    with pytest.raises(ConfigurationError):
        warm_ups.run(otherwise=pytest.fail)
    assert seen == [(True, False)]
    assert not warm_ups.is_running
    warm_ups.run(otherwise=lambda: seen.append((warm_ups.is_running, False)))
    assert len(seen) == 2


# --- processes ------------------------------------------------------------------------------------


def test_a_process_is_told_by_its_machine_its_container_and_its_start():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        mark = process_mark(process.pid)
        beat = heartbeat(pid=process.pid, process=mark)
        assert process_state(beat) == "lives here"
        given_again = msgspec.structs.replace(beat, process=f"{mark}0")
        assert process_state(given_again) == "gone", "its number is another's"
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process_state(beat) == "gone", "its parent has not looked yet"
        process.wait()
        assert process_state(beat) == "gone"
        elsewhere = msgspec.structs.replace(beat, process=f"other {mark.partition(' ')[2]}")
        assert process_state(elsewhere) == "not known", "one of another machine was looked for here"
        unmarked = msgspec.structs.replace(beat, process="")
        assert process_state(unmarked) == "not known", "not known is not gone"


# --- what people are told of it -------------------------------------------------------------------


class Looked:
    """Somebody who looks again and again, and a clock of his own."""

    def __init__(self, world: World) -> None:
        self.store, self.now = world.store, 0.0
        self.watch = StandbyReading(lambda: self.now)

    def look(self, after_s: float = 0.0) -> list[str]:
        self.now += after_s
        return [each.standing for each in self.watch.look(self.store)]


@pytest.fixture
def looked(world):
    return Looked(world)


def test_a_copy_beside_what_a_dead_one_said_is_nobody_who_stands_by(world, looked):
    """Two files of one name are two beats a look; a hand-over to it would stop the pipeline."""
    said = lives(world, 1)
    write_standby(world.store, said)
    world.store.put(f"{STANDBYS}/copy of it.json", encode(msgspec.structs.replace(said, beat=7)))
    assert [looked.look(0.1) for _ in range(3)] == [["not known"]] * 3
    assert looked.look(3.0) == ["gone"]


@pytest.mark.parametrize("interval_ms", [-1, 0, 10**15])
def test_an_interval_that_no_standby_has_makes_nobody_wait(world, looked, interval_ms):
    """Asked to hand over, one would wait for ever, or divide by it."""
    said = msgspec.to_builtins(lives(world, 1)) | {"interval_ms": interval_ms}
    world.store.put(standby_path(said["name"]), msgspec.json.encode(said))
    assert looked.look() == []
    note = {"format_version": 1, "dag_id": "d", "run_id": "r", "interval_ms": interval_ms}
    world.store.put(WATCHDOG, msgspec.json.encode(note))
    write_heartbeat(world.store, heartbeat())
    assert missed_looks(world.store) is None


def test_one_look_does_not_tell_whether_anybody_stands_by(world, looked):
    said = lives(world, 1)
    assert looked.look() == []
    write_standby(world.store, said)
    assert looked.look(0.1) == ["not known"]
    assert looked.look(0.1) == ["not known"]
    write_standby(world.store, msgspec.structs.replace(said, beat=1))
    assert looked.look(0.1) == ["stands by"]
    assert looked.look(2.0) == ["stands by"], "three of its intervals are 2.1 s"
    assert looked.look(0.2) == ["gone"]
    assert "nobody stands by: driver app-2 on h did" in str(looked.watch.look(world.store)[0])


def test_who_has_not_looked_for_long_does_not_know_again(world, looked):
    said = lives(world, 1)
    write_standby(world.store, said)
    looked.look()
    write_standby(world.store, msgspec.structs.replace(said, beat=1))
    assert looked.look(600) == ["not known"]


def test_who_was_refused_to_stand_by_is_told_of_with_why_until_a_newer_driver_drives(world, looked):
    said = msgspec.structs.replace(lives(world, 0), end="refused", reason="TopicError: gone")
    write_standby(world.store, said)
    [seen] = looked.watch.look(world.store)
    assert str(seen) == "nobody stands by: driver app-2 on h was refused: TopicError: gone"
    at_ms = world.store.list(STANDBYS)[0].modified_at_ms
    while time.time_ns() // 1_000_000 <= at_ms:  # the store's clock tells which was later
        pass
    take_term(world.store, taken_by="next")
    assert looked.look() == []


def test_of_who_was_called_off_or_stands_beside_another_nothing_is_told(world, looked):
    left = msgspec.structs.replace(lives(world, 1), name="s1", end="called off", reason="x")
    write_standby(world.store, left)
    assert looked.look() == []
    write_standby(world.store, msgspec.structs.replace(left, end="failed"))
    assert looked.look() == ["failed"]
    write_standby(world.store, lives(world, 1))
    assert looked.look() == ["not known"], "whether another one stands by is what matters"


def test_standbys_that_come_and_die_without_end_leave_a_bounded_number_of_files(world):
    """Each start of a task has a name of its own; the driver before them may run for months."""

    def refused() -> None:
        raise OwnershipError("another pipeline's")

    for _ in range(STANDBYS_KEPT + 5):
        with pytest.raises(OwnershipError):
            follow(world, lambda _: pytest.fail("it started"), refused)
    assert len(world.store.list(STANDBYS)) == STANDBYS_KEPT


def test_who_drives_removes_those_of_a_week_ago_by_the_stores_clock(tmp_path, monkeypatch):
    """A machine whose clock is a year ahead would take the file of one that lives."""
    store = CheckpointStore.open(tmp_path)
    for name in ("drives", "lives", "forgotten"):
        write_standby(store, standby(name=name))
    old = tmp_path / standby_path("forgotten")
    os.utime(old, (old.stat().st_mtime - 8 * 86_400,) * 2)
    monkeypatch.setattr("time.time_ns", lambda: 2 * 10**18)
    remove_standby(store, "drives")
    assert [each.name for each in standbys(store)] == ["lives"]


@pytest.mark.parametrize(("seconds", "evaluated"), [(0.3, 4), (5.0, 1)])
@pytest.mark.parametrize("ended_after", [1, 2, 9])
def test_a_short_batch_is_evaluated_for_a_second_and_not_once_warm_ups_are_ended(
    tmp_path, monkeypatch, seconds, evaluated, ended_after
):
    """A long one holds up the start that follows, and the cluster is the other driver's."""
    store = CheckpointStore.open(tmp_path)
    store.put("offsets/0", b"v1\n{}\n-")
    rows, done, now = MagicMock(), [], 0.0
    clock_of(monkeypatch, "airflow_eos.core.delivery.standby", monotonic=lambda: now)

    def evaluate(batch: Any) -> None:
        nonlocal now
        done.append(batch)
        now += seconds

    into = rows.writeStream.outputMode.return_value.foreachBatch

    def start() -> MagicMock:
        into.call_args.args[0]("the rows", 0)
        return MagicMock()

    into.return_value.option.return_value.trigger.return_value.start.side_effect = start
    monkeypatch.setattr(waits, "stateful", lambda _: ())
    monkeypatch.setattr(waits, "collected", lambda batch, _names: evaluate(batch))
    first: Any = MagicMock(store=store, read=SimpleNamespace(frame=None, own=None))
    first.sink.tasks.return_value = rows
    warm_up(first, again=lambda: len(done) < ended_after)
    assert done == ["the rows"] * min(evaluated, ended_after)


@pytest.mark.parametrize("told", [False, True, RuntimeError("a query of the user's has failed")])
def test_an_app_that_waits_for_any_of_its_queries_does_not_end_by_a_warm_up(tmp_path, told):
    """Spark's ``awaitAnyTermination`` returns for ever once a query of the session has ended."""
    store = CheckpointStore.open(tmp_path)
    store.put("offsets/0", b"v1\n{}\n-")
    rows = MagicMock()
    streams = rows.sparkSession.streams
    streams._jsqm.awaitAnyTermination.side_effect = [told]
    warm_up(MagicMock(store=store, read=SimpleNamespace(frame=rows, own="a source of ours")))
    assert streams.resetTerminated.called == (told is False)
