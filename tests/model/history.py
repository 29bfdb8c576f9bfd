"""One history of the model: a seed, and everything that happens in it.

Two drivers and two recoveries at most are alive at a time, besides tasks of drivers long dead, and
one sleeper more.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from airflow_eos.core.checkpoint.rulings import accept
from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.errors import (
    CheckpointError,
    ContinuityError,
    DecisionNeededError,
    NonDeterministicReplayError,
    StoreError,
)
from airflow_eos.kafka.transactions.identity import transaction_of
from airflow_eos.recovery import Action, gather, make_plan, resolve, shortfall
from tests.model.broker import Offer
from tests.model.choices import (
    FAULTS,
    PLACES,
    TIMES,
    TIMES_WHERE_ROWS_ARE_LOST,
    Chance,
    Copy,
    Relief,
    Sleep,
    Stop,
)
from tests.model.frames import Cut
from tests.model.judge import ProtocolBroken
from tests.model.scheduler import Fault, Process
from tests.model.spark import SparkError
from tests.model.world import REFUSALS, TIMEOUT_MS, InputGoneError, World

_FOLLOWED = (DecisionNeededError, NonDeterministicReplayError, ContinuityError)
"""What a person reads at the end of any history, and does what it says."""

_AT_ONCE = 2
_FOLLOWED_AT_MOST = 5
_CALLS_AT_MOST = 2_500
_ROUNDS_AT_MOST = 16
_STEPS = (0, 0, 0, 1, 2, 3, 5, 8, 13)


def run_history(
    seed: int,
    *,
    disk: bool = False,
    lossy: bool = False,
    several: bool = False,
    standbys: bool = False,
    two_phase: bool = False,
) -> History:
    """Run one history to its end; on a ``disk`` there are power cuts, and people at Spark's log.

    A ``lossy`` one has an input that forgets rows, by retention and by compaction, an output that
    is compacted, a server whose clock is set back, and files that
    somebody removes. With ``several``, each decision is of two outputs. With ``standbys`` each
    driver takes the term after the one that it saw, or none. With ``two_phase`` the cluster comes
    to offer transactions that no timer ends, and stops doing so, while batches are under way.

    Raises:
        ProtocolBroken: a rule was broken; the message has the seed and the whole trace.
    """
    history = History(
        seed, disk=disk, lossy=lossy, several=several, standbys=standbys, two_phase=two_phase
    )
    try:
        history.run()
    finally:
        history.world.scheduler.crash_all()
    return history


class History:
    """Faults and turns; the judge listens."""

    def __init__(
        self,
        seed: int,
        *,
        disk: bool = False,
        lossy: bool = False,
        several: bool = False,
        standbys: bool = False,
        two_phase: bool = False,
    ) -> None:
        self.seed = seed
        self.disk = disk
        self.lossy = lossy
        self._accepted: dict[int, int] = {}
        self.chance = Chance(seed)
        # not both: a control batch that power takes is lost for good, and said
        self._outage = self._skip if seed % 3 == 0 else self._power_cut
        self.world = World(
            self.chance.units(),
            version=self.chance.choice((1, 2)),
            retained=self.chance.choice((1, 1, 2, 9)),
            disk=disk,
            several=several,
            standbys=standbys,
            two_phase=two_phase,
        )
        if two_phase:
            self._change_the_cluster()

    def run(self) -> None:
        chance = self.chance
        first = self.world.start_driver(chance.cut())
        stories: list[Callable[[], Relief | Sleep | Copy | Stop]]
        stories = [chance.relief, chance.sleep, chance.sleep, chance.turn]
        if not self.lossy:  # what was promised on a copy that is put away is nobody's
            stories.insert(3, chance.copy)
        self._befalls(first, chance.choice(stories)())
        if self.disk:
            self._outage()
        if self.lossy:
            self._loses()
        for _ in range(chance.choice(_STEPS)):
            self._step()
        self._end()

    # --- what may happen next -----------------------------------------------------------------

    def _step(self) -> None:
        drivers, alive = self._drivers(), self.world.scheduler.alive
        possible = [self._start_driver] if len(drivers) < _AT_ONCE else []
        if self._alive("recovery") < _AT_ONCE:
            possible.append(self._start_recovery)
        if alive:
            possible += [self._some_calls, self._up_to, self._unheard_calls]
        if len(alive) > 1:
            possible.append(self._crash_one)
        if self.disk:
            possible.append(self._outage)
        if self.lossy:
            possible += [self._loses] * 2
        if drivers:
            possible += [self._driver_and_tasks, self._relief]
            possible += [] if self.lossy else [self._copy]
            if not self._alive("recovery"):
                possible.append(self._sleep)
        if self.world.broker.holders:
            possible.append(self._time_passes)
        if self.world.two_phase:
            possible += [self._change_the_cluster] * 2
        self.chance.choice(possible)()
        self._no_rule_is_broken()

    def _start_driver(self) -> None:
        self._go_on(self.world.start_driver(self.chance.cut()), self.chance.choice(PLACES))

    def _start_recovery(self) -> None:
        plans = self.world.plans
        stale = plans[-1] if plans and self.chance.yes() else None
        recovery = self.world.start_recovery(stale)
        self._go_on(recovery, self.chance.choice(PLACES))

    def _some_calls(self) -> None:
        self._calls(self._anybody(), self.chance.randint(1, 8))

    def _up_to(self) -> None:
        self._go_on(self._anybody(), self.chance.choice(PLACES))

    def _driver_and_tasks(self) -> None:
        driver = self.chance.choice(self._drivers())
        self._with_tasks(driver, Stop(self.chance.choice(PLACES)))

    def _relief(self) -> None:
        self._befalls(self._drivers()[0], self.chance.relief())

    def _sleep(self) -> None:
        self._befalls(self._drivers()[0], self.chance.sleep())

    def _copy(self) -> None:
        self._befalls(self._drivers()[0], self.chance.copy())

    def _unheard_calls(self) -> None:
        calls = self.chance.choice((1, 1, 1, 1, 1, 2, 3, 8))
        self._calls(self._anybody(), calls, self.chance.choice(FAULTS))

    def _crash_one(self) -> None:
        """Killed; or a task that Spark only takes for lost and that may still run."""
        process = self._anybody()
        if "task" in process.name and self.chance.yes():
            self.world.judge.note(f"lost: {process.name} at {process.doing}")
            process.given_up = True
        else:
            self._crash(process)

    def _time_passes(self) -> None:
        self._pass(self.chance.choice(TIMES_WHERE_ROWS_ARE_LOST if self.lossy else TIMES))

    def _change_the_cluster(self) -> None:
        """It is upgraded, or downgraded; or its setting is given, or taken back."""
        offers: tuple[Offer, ...] = ("not spoken", "refused", "offered", "offered")
        self.world.broker.two_phase = self.chance.choice(offers)
        self.world.judge.note(f"--- two-phase transactions are {self.world.broker.two_phase}")

    def _power_cut(self) -> None:
        """Nobody who has the disk goes on; tasks do, which never read it."""
        self._with_tasks(self._any_driver(), self.chance.anywhere())
        self.world.judge.note("--- power cut")
        for process in self.world.scheduler.alive:
            if "task" not in process.name or self.chance.yes():
                process.crash()
        self.world.objects.power_cut(self.chance)
        for what in self.chance.neglect():
            self._pass(what)
        self.chance.choice((self._start_driver, self._start_driver, self._start_recovery))()
        self._no_rule_is_broken()

    def _skip(self) -> None:
        """Somebody lets Spark skip the batch in flight, whose driver is dead or asleep."""
        driver = self._any_driver()
        self._with_tasks(driver, self.chance.anywhere())
        if self.chance.yes():
            self._crash(driver)
        if self.world.skip_a_batch():
            self.world.judge.note("--- a control batch is put after the batch in flight")
        self._start_driver()
        self._no_rule_is_broken()

    def _loses(self) -> None:
        """Where some driver stands, the input forgets rows, or somebody removes a file."""
        self._with_tasks(self._any_driver(), self.chance.anywhere())
        if self.chance.yes(0.3):
            self._remove_a_file()
            return
        for what in self.chance.neglect():
            self._pass(what)
        self.world.lose_input(
            retention=self.chance.yes(0.4),
            until=self.chance.randint(0, len(self.world.units)),
            lost=self.chance.yes,
        )
        self._no_rule_is_broken()

    def _remove_a_file(self) -> None:
        """Of Spark's newest ones or of ours, when nobody is there; whoever did it has a copy."""
        self.world.judge.note("everybody dies")
        self.world.scheduler.crash_all()
        copy = self.world.objects.copy()
        planned = max((int(p[8:]) for p in copy if p.startswith("offsets/")), default=-1)
        removable = re.compile(
            rf"metadata|(?:offsets|commits)/(?:{planned}|{planned - 1})"
            # of the batch in flight nobody knows a decision that is gone: docs/security.md
            rf"|eos/decisions/{planned - 1}/\d+\.json"
        )
        if there := sorted(path for path in copy if removable.fullmatch(path)):
            path = self.chance.choice(there)
            self.world.judge.note(f"--- {path} is removed")
            self.world.removed[path] = copy.pop(path)
            self.world.objects.put_back(copy)
        self._start_driver()
        self._no_rule_is_broken()

    def _any_driver(self) -> Process:
        return self._drivers()[0] if self._drivers() else self.world.start_driver(self.chance.cut())

    # --- longer stories -----------------------------------------------------------------------

    def _befalls(self, driver: Process, story: Relief | Sleep | Copy | Stop) -> None:
        match story:
            case Relief():
                self._relieve(driver, story)
            case Sleep():
                self._fall_asleep(driver, story)
            case Copy():
                self._put_a_copy_back(driver, story)
            case Stop():
                self._with_tasks(driver, story)
        self._no_rule_is_broken()

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

    def _fall_asleep(self, driver: Process, sleep: Sleep) -> None:
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
        if sleep.relieved:
            self._crash(driver)
            driver = self.world.start_driver(sleep.cut)
            self._with_tasks(driver, Stop("put commits"))
        self._with_tasks(sleeper, sleep.wakes)
        self._with_tasks(driver, sleep.goes_on)

    def _put_a_copy_back(self, driver: Process, story: Copy) -> None:
        world = self.world
        self._with_tasks(driver, story.copied)
        copy = world.objects.copy()
        world.judge.note("--- the checkpoint is copied")
        self._with_tasks(driver, story.meanwhile)
        if story.dies:
            self._crash(driver)
        for what in story.neglect:
            self._pass(what)
        newest = world.objects.copy()
        world.judge.note("--- the copy is put back")
        world.copies.append(copy)
        world.objects.put_back(copy)
        if story.first:
            self._with_tasks(driver, story.wakes)
        successor = world.start_driver(story.cut)
        self._with_tasks(successor, Stop("list offsets", 6))  # past every refusal, or ended
        if isinstance(successor.error, REFUSALS) and not story.first:
            world.judge.note("--- refused: the newest copy is put back")
            world.objects.put_back(newest)
            successor = world.start_driver(story.cut)
        self._with_tasks(successor, story.goes_on)
        self._with_tasks(driver, story.wakes)

    # --- the end ------------------------------------------------------------------------------

    def _no_rule_is_broken(self) -> None:
        judge = self.world.judge
        if judge.violations:
            trace = "\n".join(judge.history)
            raise ProtocolBroken(f"seed {self.seed}: {judge.violations[0]}\n{trace}")

    def _end(self) -> None:
        world = self.world
        world.scheduler.crash_all()
        self._no_rule_is_broken()
        world.judge.note("--- no more faults: one driver starts")
        last, given_up = self._followed()
        # Else a checkpoint was torn when a copy was put back under a live Spark; what was safe
        # stayed safe.
        torn = world.copies and isinstance(last.error, (*REFUSALS, SparkError))
        if not torn:
            if last.error is not None:
                world.judge.fail(f"no dead end: {type(last.error).__name__}: {last.error}")
            if self.lossy:
                world.judge.all_that_was_left(accepted=self._accepted)
            else:
                world.judge.all_delivered(but=given_up)
            steps = make_plan(gather(world.store, world.participant())).steps
            if steps:
                world.judge.fail(f"liveness: a second recovery still plans {steps}")
        self._no_rule_is_broken()

    def _followed(self) -> tuple[Process, int]:
        """Property 13: a driver starts, and a person does what its error says, five times at most.

        One who knows what readers have seen. Returns the last driver, and how many rows were
        announced to be given up.
        """
        world, given_up = self.world, 0
        for _ in range(_FOLLOWED_AT_MOST + 1):
            last = world.start_driver(Cut())
            world.scheduler.run(last)
            error: Any = last.error
            if not isinstance(error, _FOLLOWED) and not (self.lossy and self._may_follow(error)):
                break
            world.judge.note(f"a person reads: {error}")
            given_up += self._follow(error)
        return last, given_up

    def _may_follow(self, error: Any) -> bool:
        return isinstance(error, InputGoneError) or (
            isinstance(error, CheckpointError) and bool(self.world.removed)
        )

    def _follow(self, error: Any) -> int:
        """The remedy that is true, or the only one; how many rows it costs."""
        world = self.world
        if isinstance(error, InputGoneError):
            world.leaves_out = True
            return 0
        if self.lossy and isinstance(error, CheckpointError):
            assert re.match("put|restore", error.remedies[0].change), error
            world.objects.put_back(world.objects.copy() | world.removed)
            return 0
        if error.remedies[-1].settings:
            world.leaves_out = True
            if not error.remedies[-1].commands:
                return 0
        if isinstance(error, ContinuityError):
            moved = re.findall(r"(?:offsets|commits)/\d+", error.remedies[0].change)
            copy = world.objects.copy()
            world.objects.put_back({path: copy[path] for path in copy.keys() - set(moved)})
            return 0
        if "accept" in error.remedies[-1].commands[0]:
            facts = gather(world.store, world.participant())
            assert facts.in_flight is not None
            found = shortfall(facts, facts.in_flight)
            accept(
                world.store, found.batch_id, found.promise, missing=found.missing, ruled_by="ann"
            )
            told = error.remedies[-1].costs.split()[0]
            self._accepted[found.batch_id] = int(told) if told.isdecimal() else -1
            return max(0, self._accepted[found.batch_id])
        for step in make_plan(gather(world.store, world.participant())).steps:
            if step.action is Action.ASK and step.work is not None:
                seen = world.broker.transactions[transaction_of(step.work)].delivered
                resolve(world.store, step.work, Outcome.COMMITTED if seen else Outcome.ABORTED)
        return 0

    # --- helpers ------------------------------------------------------------------------------

    def _alive(self, kind: str) -> int:
        return sum(
            process.name.startswith(kind) and "task" not in process.name
            for process in self.world.scheduler.alive
        )

    def _anybody(self) -> Process:
        return self.chance.choice(self.world.scheduler.alive)

    def _drivers(self) -> list[Process]:
        """Those that are alive, the oldest first."""
        alive = self.world.scheduler.alive
        return [p for p in alive if p.name.startswith("driver") and "task" not in p.name]

    def _pass(self, what: str) -> None:
        """Markers are written; and then time goes by, or back; ids expire; rows go."""
        broker = self.world.broker
        self.world.judge.note(f"time passes: {what}")
        broker.pass_time({"time": TIMEOUT_MS, "half": TIMEOUT_MS // 2}.get(what, 0))
        if what == "expiry":
            broker.expire_ids()
        elif what == "retention":
            broker.settle_down()
            # of open ones where nobody stands still between his look and what he does by it
            broker.pass_retention(of_untimed=not self.world.scheduler.alive)
        elif what == "compaction":
            broker.settle_down()
            broker.compact()
        elif what == "clock back":
            broker.set_back(10 * TIMEOUT_MS)

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
            refused = isinstance(error, REFUSALS) and not isinstance(error, StoreError)
            refused = refused and not (isinstance(error, ContinuityError) and self.world.skipped)
            if refused and not self.world.copies and not self.world.removed:
                self.world.judge.fail(f"liveness: {process.name} is refused without need")
