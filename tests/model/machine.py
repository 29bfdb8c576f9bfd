"""The protocol as a state machine: every rule is one thing that may happen next.

Two drivers and two recoveries at most are alive at a time, besides tasks of drivers long dead.
"""

from __future__ import annotations

from typing import Any

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from airflow_eos.errors import DecisionNeededError
from airflow_eos.recovery import gather, make_plan
from tests.model import choices
from tests.model.choices import Relief, Sleep, Stop
from tests.model.frames import Cut
from tests.model.judge import ProtocolBroken
from tests.model.scheduler import Fault, Process
from tests.model.world import TIMEOUT_MS, World

_AT_ONCE = 2
_CALLS_AT_MOST = 500
_ROUNDS_AT_MOST = 12


class ProtocolMachine(RuleBasedStateMachine):
    """Faults and turns; the judge listens."""

    @initialize(
        batches=choices.batches,
        version=st.sampled_from([1, 2]),
        retained=st.sampled_from([1, 9]),
        cut=choices.cuts,
        opening=choices.openings,
    )
    def begin(
        self,
        batches: list[list[list[str]]],
        version: int,
        retained: int,
        cut: Cut,
        opening: Relief | Sleep | Stop,
    ) -> None:
        # rows of different batches differ, rows of one batch need not
        named = [
            [tuple(f"{number}{row}" for row in task) for task in batch]
            for number, batch in enumerate(batches)
        ]
        self.world = World(named, version, retained)
        first = self.world.start_driver(cut)
        match opening:
            case Relief():
                self._relieve(first, opening)
            case Sleep():
                self._sleep(first, opening)
            case Stop():
                self._with_tasks(first, opening)

    # --- a process goes on --------------------------------------------------------------------

    @precondition(lambda self: self.alive("driver") < _AT_ONCE)
    @rule(cut=choices.cuts, place=choices.places)
    def start_driver(self, cut: Cut, place: str) -> None:
        self._go_on(self.world.start_driver(cut), place)

    @precondition(lambda self: self.alive("recovery") < _AT_ONCE)
    @rule(stale=st.booleans(), place=choices.places)
    def start_recovery(self, stale: bool, place: str) -> None:
        plans = self.world.plans
        self._go_on(self.world.start_recovery(plans[-1] if stale and plans else None), place)

    @precondition(lambda self: self.alive())
    @rule(who=choices.who, calls=st.integers(1, 8))
    def some_calls(self, who: int, calls: int) -> None:
        self._calls(self._choose(who), calls)

    @precondition(lambda self: self.alive())
    @rule(who=choices.who, place=choices.places)
    def up_to(self, who: int, place: str) -> None:
        """Up to a call that matters."""
        self._go_on(self._choose(who), place)

    @precondition(lambda self: self.alive("driver"))
    @rule(who=choices.who, place=choices.places)
    def driver_and_tasks(self, who: int, place: str) -> None:
        """A driver with all its tasks, as most often."""
        drivers = self._drivers()
        self._with_tasks(drivers[who % len(drivers)], Stop(place))

    @precondition(lambda self: self.alive("driver"))
    @rule(relief=choices.reliefs)
    def relief(self, relief: Relief) -> None:
        self._relieve(self._drivers()[0], relief)

    @precondition(lambda self: self.alive("driver") and not self.alive("recovery"))
    @rule(sleep=choices.sleeps)
    def sleep(self, sleep: Sleep) -> None:
        self._sleep(self._drivers()[0], sleep)

    # --- what goes wrong ----------------------------------------------------------------------

    @precondition(lambda self: self.alive())
    @rule(who=choices.who, calls=st.sampled_from([1, 1, 1, 1, 1, 2, 3, 8]), fault=choices.faults)
    def unheard_calls(self, who: int, calls: int, fault: Fault) -> None:
        self._calls(self._choose(who), calls, fault)

    @precondition(lambda self: self.alive() > 1)
    @rule(who=choices.who, lost=st.booleans())
    def crash(self, who: int, lost: bool) -> None:
        """Killed; or a task that Spark only takes for lost and that may still run."""
        process = self._choose(who)
        if lost and "task" in process.name:
            self.world.judge.note(f"lost: {process.name} at {process.doing}")
            process.given_up = True
        else:
            self._crash(process)

    @precondition(lambda self: self.world.broker.holders)
    @rule(what=choices.times)
    def time_passes(self, what: str) -> None:
        self._pass(what)

    # --- what must hold -----------------------------------------------------------------------

    @invariant()
    def no_rule_is_broken(self) -> None:
        judge = self.world.judge
        if judge.violations:
            note("\n".join(judge.history))
            raise ProtocolBroken(judge.violations[0])

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        world.scheduler.crash_all()
        if world.judge.violations:
            return
        world.closing = True
        world.judge.note("--- no more faults: one driver starts")
        last = world.start_driver(Cut())
        try:
            world.scheduler.run(last)
        finally:
            world.scheduler.crash_all()
        if world.broker.forgot:
            return  # a person decides; what was safe stayed safe
        if last.error is not None:
            world.judge.fail(f"liveness: {type(last.error).__name__}: {last.error}")
        world.judge.all_delivered()
        steps = make_plan(gather(world.store, world.wire)).steps
        if steps:
            world.judge.fail(f"liveness: a second recovery still plans {steps}")
        self.no_rule_is_broken()

    # --- helpers ------------------------------------------------------------------------------

    def alive(self, kind: str = "") -> int:
        """How many processes are, tasks not counted as drivers."""
        return sum(
            process.name.startswith(kind) and not (kind and "task" in process.name)
            for process in self.world.scheduler.alive
        )

    def _choose(self, who: int) -> Process:
        alive = self.world.scheduler.alive
        return alive[who % len(alive)]

    def _drivers(self) -> list[Process]:
        """Those that are alive, the oldest first."""
        alive = self.world.scheduler.alive
        return [p for p in alive if p.name.startswith("driver") and "task" not in p.name]

    def _relieve(self, driver: Process, relief: Relief) -> None:
        self._with_tasks(driver, relief.dies)
        if relief.everybody:
            self.world.judge.note("everybody dies")
            self.world.scheduler.crash_all()
        else:
            self._crash(driver)
        for what in relief.neglect:
            self._pass(what)
        successor = self.world.start_driver(relief.cut)
        self._with_tasks(successor, relief.meets)
        self._calls(successor, 1, relief.fault)
        self._with_tasks(successor, relief.goes_on)

    def _sleep(self, driver: Process, sleep: Sleep) -> None:
        self._with_tasks(driver, sleep.begun)
        sleeper = driver
        if sleep.recovery:
            sleeper = self.world.start_recovery()
            self._with_tasks(sleeper, sleep.asleep)
            if sleep.dies:
                self._crash(driver)
        awake = [each for each in self._drivers() if each is not sleeper]
        driver = awake[0] if awake else self.world.start_driver(sleep.cut)
        self._with_tasks(driver, sleep.meanwhile)
        self._with_tasks(sleeper, sleep.wakes)
        self._with_tasks(driver, sleep.goes_on)

    def _pass(self, what: str) -> None:
        """Markers are written; and then time goes by, or idle ids expire, or rows are deleted."""
        broker = self.world.broker
        self.world.judge.note(f"time passes: {what}")
        broker.pass_time({"time": TIMEOUT_MS, "half": TIMEOUT_MS // 2}.get(what, 0))
        if what == "expiry":
            broker.expire_ids()
        elif what == "retention":
            broker.settle_down()
            broker.pass_retention()

    def _with_tasks(self, process: Process, stop: Stop) -> None:
        """A driver and its tasks (a recovery has none), up to the stop or as far as they go."""
        for _ in range(stop.passes + 1):
            self._once_with_tasks(process, stop.place)
        if stop.made:
            self._calls(process, 1)

    def _once_with_tasks(self, process: Process, place: str) -> None:
        for _ in range(_ROUNDS_AT_MOST):
            self._go_on(process, place)
            if process.runnable or not process.alive or process.doing.startswith(place):
                break
            for task in self.world.scheduler.runnable:
                if task.name.startswith(f"{process.name} task"):
                    self._go_on(task, "the end")

    def _crash(self, process: Process) -> None:
        self.world.judge.note(f"crash: {process.name} at {process.doing}")
        process.crash()

    def _go_on(self, process: Process, place: str) -> None:
        for call in range(_CALLS_AT_MOST):
            if not process.runnable or (call and process.doing.startswith(place)):
                return
            self._resume(process)
        self.world.judge.fail(f"liveness: {process.name} runs in circles")

    def _calls(self, process: Process, calls: int, fault: Fault = Fault.NONE) -> None:
        for _ in range(calls):
            if process.runnable:
                self._resume(process, fault)

    def _resume(self, process: Process, fault: Fault = Fault.NONE) -> None:
        if fault is not Fault.NONE:
            self.world.judge.note(f"{fault.value}: {process.doing} of {process.name}")
        process.resume(fault)
        if process.error is not None:
            error: Any = process.error
            self.world.judge.note(f"{process.name} ends: {type(error).__name__}: {error}")
            if isinstance(error, DecisionNeededError) and not self.world.broker.forgot:
                self.world.judge.fail(f"liveness: {process.name} asks a person without need")
