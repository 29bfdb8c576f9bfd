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
from tests.model.choices import Opening, batches, cuts, faults, openings, places, times, who
from tests.model.frames import Cut
from tests.model.judge import ProtocolBroken
from tests.model.scheduler import Fault, Process
from tests.model.world import TIMEOUT_MS, World

_AT_ONCE = 2
_CALLS_AT_MOST = 500
_ROUNDS_AT_MOST = 3


class ProtocolMachine(RuleBasedStateMachine):
    """Faults and turns; the judge listens."""

    @initialize(
        batches=batches,
        version=st.sampled_from([1, 2]),
        retained=st.sampled_from([1, 9]),
        opening=openings,
    )
    def begin(
        self, batches: list[list[list[str]]], version: int, retained: int, opening: Opening
    ) -> None:
        # rows of different batches differ, rows of one batch need not
        named = [
            [tuple(f"{number}{row}" for row in task) for task in batch]
            for number, batch in enumerate(batches)
        ]
        self.world = World(named, version, retained)
        self._open(opening)

    def _open(self, opening: Opening) -> None:
        world = self.world
        first = world.start_driver(opening.cuts[0])
        one, two, three, four = opening.places
        if opening.kind == "late":
            self._with_tasks(first, "EndTxn")
            self._calls(first, opening.settled)
            world.broker.pass_time(TIMEOUT_MS if opening.timed_out else 0)
            self._crash(first)
            second = world.start_driver(opening.cuts[1])
            self._with_tasks(second, four)
            self._calls(second, 1, opening.fault)
        elif opening.kind == "recovery":
            self._with_tasks(first, "put commits" if opening.closed else one)
            self._calls(first, 1)
            second = world.start_recovery()
            self._with_tasks(second, three)
            self._with_tasks(first, two)
            self._with_tasks(second, four)
        else:
            self._with_tasks(first, one)
        if opening.kind == "second":
            second = world.start_driver(opening.cuts[1])
            self._with_tasks(second, two)
            self._with_tasks(first, three)
            self._with_tasks(second, four)

    # --- a process goes on --------------------------------------------------------------------

    @precondition(lambda self: self.alive("driver") < _AT_ONCE)
    @rule(cut=cuts, place=places)
    def start_driver(self, cut: Cut, place: str) -> None:
        self._go_on(self.world.start_driver(cut), place)

    @precondition(lambda self: self.alive("recovery") < _AT_ONCE)
    @rule(stale=st.booleans(), place=places)
    def start_recovery(self, stale: bool, place: str) -> None:
        plans = self.world.plans
        self._go_on(self.world.start_recovery(plans[-1] if stale and plans else None), place)

    @precondition(lambda self: self.alive())
    @rule(who=who, calls=st.integers(1, 8))
    def some_calls(self, who: int, calls: int) -> None:
        self._calls(self._choose(who), calls)

    @precondition(lambda self: self.alive())
    @rule(who=who, place=places)
    def up_to(self, who: int, place: str) -> None:
        """Up to a call that matters."""
        self._go_on(self._choose(who), place)

    @precondition(lambda self: self.alive("driver"))
    @rule(who=who, place=places)
    def driver_and_tasks(self, who: int, place: str) -> None:
        """A driver with all its tasks, as most often."""
        drivers = [p for p in self.world.scheduler.alive if self._is_driver(p)]
        self._with_tasks(drivers[who % len(drivers)], place)

    @precondition(lambda self: self.alive("driver"))
    @rule(cut=cuts, place=places)
    def restart_driver(self, cut: Cut, place: str) -> None:
        """The oldest driver is killed, its tasks perhaps not yet, and a new one started."""
        self._crash(next(p for p in self.world.scheduler.alive if self._is_driver(p)))
        self._with_tasks(self.world.start_driver(cut), place)

    # --- what goes wrong ----------------------------------------------------------------------

    @precondition(lambda self: self.alive())
    @rule(who=who, calls=st.sampled_from([1, 1, 1, 1, 1, 2, 3, 8]), fault=faults)
    def unheard_calls(self, who: int, calls: int, fault: Fault) -> None:
        self._calls(self._choose(who), calls, fault)

    @precondition(lambda self: self.alive() > 1)
    @rule(who=who, lost=st.booleans())
    def crash(self, who: int, lost: bool) -> None:
        """Killed; or a task that Spark only takes for lost and that may still run."""
        process = self._choose(who)
        if lost and "task" in process.name:
            self.world.judge.note(f"lost: {process.name} at {process.doing}")
            process.given_up = True
        else:
            self._crash(process)

    @precondition(lambda self: self.world.broker.ongoing())
    @rule(what=times)
    def time_passes(self, what: str) -> None:
        broker = self.world.broker
        self.world.judge.note(f"time passes: {what}")
        broker.pass_time({"time": TIMEOUT_MS, "half": TIMEOUT_MS // 2}.get(what, 0))
        if what == "expiry":
            broker.expire_ids()

    @precondition(lambda self: self.world.broker.ongoing())
    @rule(
        expiry=st.booleans(),
        retention=st.sampled_from([False, False, False, True]),
        cut=cuts,
        place=places,
    )
    def nobody_is_there(self, expiry: bool, retention: bool, cut: Cut, place: str) -> None:
        """Everything died and was found late, when what was open had timed out."""
        broker = self.world.broker
        self.world.judge.note(f"nobody is there ({expiry=}, {retention=})")
        self.world.scheduler.crash_all()
        broker.pass_time(TIMEOUT_MS)
        broker.settle_down()
        if expiry:
            broker.expire_ids()
        if retention:
            broker.pass_retention()
        self._with_tasks(self.world.start_driver(cut), place)

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

    @staticmethod
    def _is_driver(process: Process) -> bool:
        return process.name.startswith("driver") and "task" not in process.name

    def _with_tasks(self, driver: Process, place: str) -> None:
        for _ in range(_ROUNDS_AT_MOST):
            self._go_on(driver, place)
            if driver.runnable or not driver.alive or driver.doing.startswith(place):
                break
            for task in self.world.scheduler.runnable:
                if task.name.startswith(f"{driver.name} task"):
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
