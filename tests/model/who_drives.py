"""Who drives a pipeline: drivers, standbys and persons on one checkpoint, step by step.

Rows are no part of it. What runs is the product's: the heartbeat with what it hears, the standby
with its watch, terms, requests. What is played are a clock, processes that die or sleep before any
call to the store, files that a disk damages, and people who ask at any step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from obstore.store import MemoryStore

from airflow_eos.core.checkpoint import CheckpointStore, drain_newest, take_term
from airflow_eos.core.checkpoint import standby as records
from airflow_eos.core.checkpoint.backend import HEARTBEAT
from airflow_eos.core.checkpoint.drain import BY_STANDBY, Beginning
from airflow_eos.core.delivery import beats, standby
from airflow_eos.errors import CheckpointError, ConfigurationError, EosError
from tests.model.choices import Chance
from tests.model.judge import ProtocolBroken
from tests.model.scheduler import Fault, Process, Scheduler, current, external

STEPS = 900
_AT_ONCE = 2
_QUIET_S = 150.0
_PIECES = (b"", b"\0" * 200, b'{"format_ver', b'{"format_version": 9}')
_GONE_FOR_S = 12.0
"""How long after its death a standby may still be handed over to: it was seen to live just now."""


class Stepped:
    """A store with a stop before every request."""

    def __init__(self) -> None:
        self.real = MemoryStore()

    def __getattr__(self, name: str) -> Any:
        asked = getattr(self.real, name)

        def step(*given: Any, **named: Any) -> Any:
            doing = f"{name} {given[0]}".replace("list_with_delimiter", "list").replace("eos/", "")
            return external(doing, lambda: asked(*given, **named), lambda: OSError("no answer"))

        return step


class Shift:
    """One history: a seed, and all that happens."""

    def __init__(self, seed: int) -> None:
        self.seed, self.chance, self.now = seed, Chance(seed), 0.0
        self.backend, self.scheduler = Stepped(), Scheduler()
        self.store = CheckpointStore(self.backend, "memory")
        self.history: list[str] = []
        self.drivers: dict[str, beats.BeatLoop] = {}
        self.began_at: dict[str, int] = {}
        self.asked: list[tuple[int, int]] = []
        """When each person began to ask, and was told that it is asked."""
        self.died_at: dict[str, float] = {}
        self.taken: list[str] = []
        self.same_machine = self.chance.yes()
        self.faults = self.chance.choice((0, 1, 2, 4, 8))
        self.more = self.chance.choice((0, 2, 9, 99))
        self.people = {
            "ann": self.chance.choice((0, 0, 1, 1, 2)),
            "bob": self.chance.choice((0, 1, 2)),
        }
        """How often each of them asks: to stop, and to hand over."""
        self.steps = self.numbered = 0

    # --- processes ----------------------------------------------------------------------------

    def spawn(self, kind: str, body: Callable[[str], object]) -> Process:
        self.numbered += 1
        name = f"{kind} {self.numbered}"
        self.note(f"--- {name} begins")
        return self.scheduler.spawn(name, lambda: body(name), (EosError,))

    def sleep(self, seconds: float) -> None:
        until, process = self.now + seconds, current()
        assert process is not None
        process.until = until
        process.wait_until(lambda: self.now >= until, "sleep")

    def drive(self, name: str) -> None:
        """A start by hand, or by a task; it stands behind nobody."""
        began = self._begin(name)
        self.sleep(1.0)
        self._drives(name, began, None)

    def stand_by(self, name: str) -> None:
        began = self._begin(name)
        standing = standby.StandingBy(
            self.store,
            application_id=name,
            still_wanted=lambda: None,
            began=began,
            sleep=self.sleep,
            clock=lambda: self.now,
        )

        def start(after: int) -> Callable[[], None]:
            self.sleep(self.chance.choice((0.0, 1.0)))
            return self._taken(name, began, after)

        why_not = self.chance.choice((None, None, "TopicError: gone"))
        standby.stand_by(
            standing,
            examine=partial(self.sleep, 1.0),
            start=start,
            make_ready=lambda: why_not,
            sleep=self.sleep,
        )()

    def ask(self, name: str) -> None:
        """A person who presses the button of the page: once, and he does not look again."""
        since = self.steps
        drain_newest(self.store, requested_by=f"page {name}", reason="x")
        self.asked.append((since, self.steps))
        self.note(f"{name} was told that it is asked")

    def hand_over(self, name: str) -> None:
        try:
            records.hand_over(self.store, requested_by=name, reason="upgrade")
        except ConfigurationError as error:
            self.note(f"{name}: {error}")

    def _begin(self, name: str) -> Beginning:
        began = Beginning.now(self.store)
        self.began_at[name] = self.steps
        return began

    def _drives(self, name: str, began: Beginning, after: int | None) -> None:
        self._taken(name, began, after)()

    def _taken(self, name: str, began: Beginning, after: int | None) -> Callable[[], None]:
        term = take_term(self.store, taken_by=name, after=after).term.number
        self.note(f"{name} has term {term}")
        self.taken.append(name)
        writer = beats.BeatLoop(
            self.store, application_id=name, trigger=timedelta(seconds=1), began=began
        )
        writer.start(term)
        return partial(self._beats, name, writer)

    def _beats(self, name: str, writer: beats.BeatLoop) -> None:
        """The heartbeat's thread, until the batch that never comes would be left to the next."""
        self.drivers[name] = writer
        while not writer.draining.is_set():
            self.sleep(writer._own.interval.total_seconds())
            writer._beat()
            if writer._drain.hands_over and not writer.draining.is_set():
                writer._await_standby()
                if writer.draining.is_set() and writer._drain.hands_over:
                    self._handed_over(name)
        self.note(f"{name} drains, asked by {writer._drain.request}")
        if not writer.superseded.is_set():
            writer.stop("stopped")

    # --- what befalls them --------------------------------------------------------------------

    def run(self) -> None:
        chance = self.chance
        self.spawn("driver", self.drive)
        for _ in range(chance.choice((1, 1, 2))):
            self.spawn("standby", self.stand_by)
        self._steps(chance.randint(100, 300))
        while self.steps < STEPS:
            event = chance.choice(self._events())
            self.faults -= event in (self._kill, self._damage, self._unheard)
            event()
            self._steps(chance.choice((0, 1, 2, 3, 5, 8, 13, 30, 80)))
        self.note("--- no more faults")
        self.backend.real.put("eos/nothing", b"")
        until = self.now + _QUIET_S
        while self.now < until and self._step():
            pass
        self._judge()

    def _events(self) -> list[Callable[[], object]]:
        events: list[Callable[[], object]] = [partial(self._steps, 100)]
        if self.faults:
            events += [self._kill, self._damage, self._unheard]
        if self._alive("standby") < min(_AT_ONCE, self.more):
            events.append(self._comes)
        if not (self._alive("standby") or self._alive("driver")) or self.chance.yes(0.1):
            events.append(partial(self.spawn, "driver", self.drive))
        events += [partial(self._asks, who) for who, left in self.people.items() if left]
        return events

    def _comes(self) -> None:
        self.more -= 1
        self.spawn("standby", self.stand_by)

    def _asks(self, who: str) -> None:
        self.people[who] -= 1
        self.spawn(who, self.ask if who == "ann" else self.hand_over)

    def _removes_a_request(self) -> bool:
        """Whether somebody is about to; it is one call of thousands, and no store compares."""
        return any(each.doing.startswith("delete drain.json") for each in self.scheduler.alive)

    def _alive(self, kind: str) -> int:
        return sum(each.name.startswith(kind) for each in self.scheduler.alive)

    def _kill(self) -> None:
        """Of drivers and standbys, before whatever call it stands."""
        if alive := [each for each in self.scheduler.alive if not self._is_person(each)]:
            victim = self.chance.choice(alive)
            self.note(f"--- {victim.name} is killed before {victim.doing}")
            self.died_at[victim.name] = self.now
            victim.crash()

    def _damage(self) -> None:
        """The heartbeat, by a disk or a person; whoever lives writes it anew."""
        self.note("--- the heartbeat is damaged")
        if self.chance.yes(0.3):
            self.backend.real.delete(HEARTBEAT)
        else:
            self.backend.real.put(HEARTBEAT, self.chance.choice(_PIECES))

    def _unheard(self) -> None:
        """A call without an answer; a person whose call fails asks again, and nothing is owed."""
        ready = [each for each in self.scheduler.runnable if not self._is_person(each)]
        beating = [each for each in ready if each.name in self.drivers or "standby" in each.name]
        if beating:
            self.chance.choice(beating).resume(self.chance.choice((Fault.LOST, Fault.REFUSED)))

    def _is_person(self, process: Process) -> bool:
        return not process.name.startswith(("driver", "standby"))

    def _steps(self, count: int) -> None:
        for _ in range(count):
            self._step()

    def _step(self) -> bool:
        """One call of somebody; where all sleep, time goes by."""
        self.steps += 1
        if self.people["ann"] and self._removes_a_request() and self.chance.yes():
            self._asks("ann")
            self.scheduler.run(self.scheduler.processes[-1])
        if runnable := self.scheduler.runnable:
            process = self.chance.choice(runnable)
            process.resume()
            if process.error is not None:
                self.note(f"{process.name} ends: {process.error}")
        elif alive := self.scheduler.alive:
            self.now = min(each.until for each in alive)
        else:
            return False
        return True

    # --- the rules ----------------------------------------------------------------------------

    def note(self, said: str) -> None:
        self.history.append(f"{self.steps:>5} {self.now:7.2f}  {said}")

    def fail(self, rule: str) -> None:
        trace = "\n".join(self.history)
        raise ProtocolBroken(f"seed {self.seed}: {rule}\n{trace}")

    def _handed_over(self, name: str) -> None:
        living = [
            each.name
            for each in self.scheduler.processes
            if each.name.startswith("standby")
            and (each.alive or self.now - self.died_at.get(each.name, -99.0) < _GONE_FOR_S)
        ]
        if not living:
            self.fail(f"only what grows tells life: {name} hands over, and nobody stands by")

    def _judge(self) -> None:
        driving = [
            name
            for name, writer in self.drivers.items()
            if not writer.draining.is_set() and self._process(name).alive
        ]
        since = max((since for since, _ in self.asked), default=-1)
        if any(self.began_at[name] > since for name in self.taken):
            since = -1  # somebody has started it since: what was asked before is over
        last = max((told for _, told in self.asked), default=-1)
        for name in driving:
            if self.began_at[name] < since:
                self.fail(f"a request lives until it is heard: {name} drives on after it")
        if len(driving) > 1:
            self.fail(f"terms: {driving} drive")
        waits = [each for each in self.scheduler.alive if each.name.startswith("standby")]
        if not driving and waits and not self.asked:
            self.fail(f"no dead end: {waits[0].name} waits for ever")
        if not driving and [each for each in waits if self.began_at.get(each.name, 0) < since]:
            self.fail(f"a request lives until it is heard: {waits[0].name} waits on after it")
        for name, writer in self.drivers.items():
            by = writer._drain.request and writer._drain.request.requested_by
            if by not in (None, BY_STANDBY) and self.began_at[name] > last:
                self.fail(f"who begins after a request is wanted: {name} was stopped by {by}")

    def _process(self, name: str) -> Process:
        return next(each for each in self.scheduler.processes if each.name == name)


class _Event:
    """``threading.Event`` whose waits are the clock's."""

    def __init__(self, shift: Shift) -> None:
        self._shift, self._is_set = shift, False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, seconds: float) -> bool:
        self._shift.sleep(seconds)
        return self._is_set


@contextmanager
def by_its_clock(shift: Shift) -> Iterator[None]:
    """All waits and clocks are the history's; a thread of its own does nothing."""
    time = SimpleNamespace(
        sleep=shift.sleep,
        monotonic=lambda: shift.now,
        time_ns=lambda: int(shift.now * 1e9) + shift.steps * 1_000_000,
    )
    thread = SimpleNamespace(start=lambda: None, is_alive=lambda: False)
    threads = SimpleNamespace(
        Thread=lambda **_: thread, Event=partial(_Event, shift), Lock=threading.Lock
    )
    watch = partial(records.StandbyReading, lambda: shift.now)

    def gone(_store: object, beat: Any) -> str | None:
        dead = shift.same_machine and beat.application_id in shift.died_at
        return "killed" if dead else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beats, "time", time)
        patch.setattr(beats, "threading", threads)
        patch.setattr(beats, "StandbyReading", watch)
        patch.setattr(records, "StandbyReading", watch)
        patch.setattr(records, "time", time)
        patch.setattr("airflow_eos.core.checkpoint.drain.time", time)
        patch.setattr(standby, "why_gone", gone)
        patch.setattr(standby, "process_state", lambda b: "gone" if gone(None, b) else "not known")
        yield


def run_history(seed: int) -> Shift:
    """Play one history to its end.

    Raises:
        ProtocolBroken: a rule was broken; the message has the seed and the whole trace.
    """
    shift = Shift(seed)
    with by_its_clock(shift):
        try:
            shift.run()
        except CheckpointError as error:  # of no process: nobody else may be refused
            shift.fail(f"{type(error).__name__}: {error}")
        finally:
            shift.scheduler.crash_all()
    return shift
