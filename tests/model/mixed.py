"""Histories in which the guarantee of one checkpoint changes, beside drivers of the former one.

What runs is ``core/delivery/start.py`` and what it starts. Spark's logs are exclusive here: without
decisions nothing else keeps two drivers from planning one batch (docs/checkpoint-stores.md).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, get_args

import obstore.exceptions as failures
import pytest

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.delivery import start as started
from airflow_eos.core.delivery.port import TaskReport
from airflow_eos.core.delivery.visibility_markers import VisibilityMarkers
from airflow_eos.core.protocol.decision import Guarantee
from airflow_eos.errors import OwnershipError
from tests.model import wire as model_wire
from tests.model.broker import Rows
from tests.model.choices import FAULTS, Chance
from tests.model.frames import Cut, Frame, fingerprint
from tests.model.judge import ProtocolBroken
from tests.model.scheduler import Fault, Process, external
from tests.model.spark import MetadataLog, MicroBatches, SparkError, Unit
from tests.model.world import ACCEPTED, TASK_ATTEMPTS, Driver, ModelSink, World
from tests.support.authority import LazyTasks
from tests.support.starts import begun

GUARANTEES: tuple[Guarantee, ...] = get_args(Guarantee)
_PLACES = (
    *["put spent"] * 2,
    *["list drivers"] * 2,
    "put drivers",
    "put decisions",
    "list decisions",
    "put offsets",
    "put commits",
    "head commits",
    *["wait"] * 2,
    "write row",
    "get spent",
    "head spent",
    "EndTxn",
    "append note",
    "the end",
)
_STARTING = (
    "head spent",
    "list decisions",
    *["list offsets"] * 2,
    "get pipeline.json",
    "put pipeline.json",
    *["list drivers"] * 2,
    "put drivers",
    "put decisions",
    "append claim",
    "put spent",
    "the end",
)
_CALLS_AT_MOST = 800


@dataclass(frozen=True)
class Written:
    """A row that was seen at once."""

    row: str
    driver: MixedDriver


class MixedWorld(World):
    """One checkpoint, which no pipeline owns yet, and drivers of each guarantee."""

    def __init__(self, units: list[Unit], retained: int) -> None:
        super().__init__(units, version=2, retained=retained)
        self.store.delete(["eos/pipeline.json"])
        self.at_once: list[Written] = []
        self.begun: dict[str, set[Guarantee]] = defaultdict(set)
        """Each row, and with which guarantees somebody called for its batch."""

    def start(self, guarantee: Guarantee, cut: Cut) -> Process:
        self._started += 1
        driver = MixedDriver(self, f"driver {self._started} {guarantee}", cut, guarantee)
        return self.scheduler.spawn(driver.name, driver.run, ACCEPTED)


@dataclass
class MixedDriver(Driver):
    """See :class:`Driver`; with any guarantee."""

    world: MixedWorld
    name: str
    cut: Cut
    guarantee: Guarantee
    term: int = 0
    visibility_markers: VisibilityMarkers | None = field(default=None, init=False)

    def run(self) -> None:
        world = self.world
        sink: Any = MixedSink(self)
        self.visibility_markers = sink.visibility_markers
        heartbeat: Any = SimpleNamespace(
            observer=None, start=self._begins, enter_phase=lambda *_: None
        )
        spark: Any = SimpleNamespace(
            sparkContext=SimpleNamespace(applicationId=self.name, setLocalProperty=lambda *_: None),
            conf=SimpleNamespace(get=lambda _: str(world.retained)),
        )
        evaluation: Any = SimpleNamespace(at=lambda _: self._running.planned_at_ms)
        # Nothing is closed: who is killed closes nothing either.
        resources: Any = SimpleNamespace(enter_context=lambda held: held.thing)
        deliver: Any = begun(
            spark, sink, world.store, heartbeat, plan=evaluation, resources=resources
        )
        self._deliver(deliver, ExclusiveBatches(world.store, world.objects))

    def _begins(self, term: int) -> None:
        self.term = term

    def _deliver(self, deliver: Any, spark: MicroBatches) -> None:
        world = self.world
        planned = spark.restored()
        while planned is not None or spark.end < len(world.units):
            if planned is None:
                left = len(world.units) - spark.end
                planned = spark.plan(min(self.cut.reach, left), world.planned_at())
            self._running = planned
            units = world.units[planned.start : planned.end]
            tasks = [rows for unit in units for rows in unit]
            for row in (row for rows in tasks for row in rows):
                world.begun[row].add(self.guarantee)
            deliver(deliver.streamed(Frame(tasks)), planned.batch)
            spark.complete(planned.batch, world.retained)
            planned = None


@dataclass
class MixedSink(ModelSink):
    """Prepares, or writes at once what a task of at most once has marked before."""

    driver: MixedDriver

    keeping = ()

    @property
    def guarantee(self) -> Guarantee:
        return self.driver.guarantee

    @property
    def visibility_markers(self) -> VisibilityMarkers | None:
        if not hasattr(self, "_marks"):
            self._marks = VisibilityMarkers.of(self.driver.world.store, self.guarantee)
        return self._marks

    def connect(self, _interval: timedelta) -> Any:
        return self.driver.world.participant()

    def tasks(self, rows: Any, *, only: Any = None, transactional: bool = True) -> Any:
        del transactional
        return LazyTasks(lambda: self.prepare(rows, only=only))

    def prepare(self, rows: Any, *, only: Collection[int] | None = None) -> list[TaskReport]:
        if self.guarantee == "exactly_once":
            return super().prepare(rows, only=only)
        tasks = dict(enumerate(rows.evaluate()))
        reports = [TaskReport(n, len(c), fingerprint(c)) for n, c in tasks.items()]
        left = tasks if only is None else {n: c for n, c in tasks.items() if n in only}
        for attempt in range(TASK_ATTEMPTS):
            for number, process in [(n, self._at_once(n, attempt, c)) for n, c in left.items()]:
                self._await(process)
                if process.result is not None:
                    left = {n: c for n, c in left.items() if n != number}
            if not left:
                return reports
        raise SparkError(f"tasks {sorted(left)} failed {TASK_ATTEMPTS} times")

    def _at_once(self, task: int, attempt: int, content: Rows) -> Process:
        driver, batch = self.driver, self.driver._running.batch

        def write() -> bool:
            if self.visibility_markers is not None and not self.visibility_markers.is_first(
                batch, task
            ):
                return True
            for row in content:
                external("write row", partial(self._seen, row), model_wire.no_answer)
            return True

        return driver.world.scheduler.spawn(f"{driver.name} task {task}.{attempt}", write, ACCEPTED)

    def _seen(self, row: str) -> None:
        self.driver.world.judge.note(f"row {row} is seen")
        self.driver.world.at_once.append(Written(row, self.driver))


class ExclusiveLog(MetadataLog):
    """As HDFS has it: the rename refuses to replace."""

    def add(self, batch: int, content: bytes) -> bool:
        try:
            self._objects.put(f"{self._folder}/{batch}", content, mode="create")  # type: ignore[arg-type]
        except failures.AlreadyExistsError:
            return False
        except OSError as error:
            raise SparkError(f"{self._folder}/{batch} cannot be written") from error
        return True


class ExclusiveBatches(MicroBatches):
    """With logs of which each name has one winner."""

    def __init__(self, store: CheckpointStore, objects: Any) -> None:
        super().__init__(store, objects)
        self._offsets = ExclusiveLog(store, objects, "offsets")
        self._commits = ExclusiveLog(store, objects, "commits")


@contextmanager
def without_races() -> Iterator[None]:
    """The model's store has a create with one winner; racing it would take a thousand steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointStore, "check_create_if_absent", lambda _: None)
        patch.setattr(started, "warn_where_two_can_plan", lambda *_: None)
        yield


def run_history(seed: int) -> MixedHistory:
    """Run one history to its end.

    Raises:
        ProtocolBroken: a guarantee was broken; the message has the seed and the whole trace.
    """
    history = MixedHistory(seed)
    try:
        history.run()
    finally:
        history.world.scheduler.crash_all()
    return history


class MixedHistory:
    """Two drivers at most are awake at a time, of any guarantee; each may sleep for long."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = Chance(seed)
        rows: list[Unit] = [
            [(f"{unit}.{task}",) for task in range(self._few())] for unit in range(self._some())
        ]
        self.world = MixedWorld(rows, retained=self.chance.choice((1, 2, 9)))
        # Mostly the same one goes on: a change is refused in the middle of a batch.
        self.kinds = self.chance.choice(
            (GUARANTEES, GUARANTEES[:2], GUARANTEES[1:], GUARANTEES[::2])
        )

    def run(self) -> None:
        if self.chance.yes():
            self._changes()
            self._judge()
        for _ in range(self.chance.randint(2, 14)):
            self._step()
            self._judge()
        self._end()

    def _changes(self) -> None:
        """One is stopped at each look and each mark of its own, while another one starts."""
        first = self.world.start(self.chance.choice(self.kinds), Cut())
        self._turn(first)
        second = self.world.start(self.chance.choice(self.kinds), Cut())
        for _ in range(self.chance.randint(1, 5)):
            self._run(second, self.chance.choice(_STARTING), self.chance.randint(0, 2))
            if self.chance.yes():
                self._turn(first)
                self._judge()
        for each in (first, second):
            if self.chance.yes(0.7):
                self.world.judge.note(f"crash: {each.name} at {each.doing}")
                each.crash()

    def _turn(self, driver: Process) -> None:
        """Some of a batch, with its tasks."""
        place, passes = self.chance.choice(_PLACES), self.chance.randint(0, 1)
        for _ in range(self.chance.choice((1, 3, 6))):
            self._run(driver, place, passes)
            if not driver.doing.startswith("wait"):
                return
            for task in self.world.scheduler.runnable:
                if task.name.startswith(f"{driver.name} task"):
                    self._run(task, "the end")

    def _few(self) -> int:
        return self.chance.choice((1, 1, 2))

    def _some(self) -> int:
        return self.chance.randint(1, 5)

    def _step(self) -> None:
        alive = self.world.scheduler.alive
        drivers = [each for each in alive if "task" not in each.name]
        possible = [self._starts] if len(drivers) < 3 else []
        if alive:
            possible += [self._goes_on, self._goes_on, self._with_tasks, self._calls]
        if drivers:
            possible += [self._dies]
        self.chance.choice(possible)()

    def _starts(self) -> None:
        guarantee = self.chance.choice(self.kinds)
        driver = self.world.start(guarantee, Cut(reach=self.chance.choice((1, 1, 2))))
        self._run(driver, self.chance.choice(_PLACES))

    def _goes_on(self) -> None:
        self._run(self._anybody(), self.chance.choice(_PLACES))

    def _with_tasks(self) -> None:
        drivers = [each for each in self.world.scheduler.alive if "task" not in each.name]
        if not drivers:
            return
        driver, place = self.chance.choice(drivers), self.chance.choice(_PLACES)
        for _ in range(self.chance.randint(1, 6)):
            self._run(driver, place)
            for task in self.world.scheduler.runnable:
                if task.name.startswith(f"{driver.name} task"):
                    self._run(task, "the end")

    def _calls(self) -> None:
        process, fault = self._anybody(), self.chance.choice((Fault.NONE, *FAULTS))
        for call in range(self.chance.choice((1, 1, 2, 3, 5, 8))):
            if process.runnable:
                self._resume(process, fault if not call else Fault.NONE)

    def _dies(self) -> None:
        process = self._anybody()
        if "task" in process.name and self.chance.yes():
            process.given_up = True
            return
        self.world.judge.note(f"crash: {process.name} at {process.doing}")
        process.crash()

    def _anybody(self) -> Process:
        return self.chance.choice(self.world.scheduler.alive)

    def _run(self, process: Process, place: str, passes: int = 0) -> None:
        for call in range(_CALLS_AT_MOST):
            if not process.runnable:
                return
            if call and process.doing.startswith(place):
                if not passes:
                    return
                passes -= 1
            self._resume(process)
        self._broken(f"{process.name} runs in circles")

    def _resume(self, process: Process, fault: Fault = Fault.NONE) -> None:
        if fault is not Fault.NONE:
            self.world.judge.note(f"{fault.value}: {process.doing} of {process.name}")
        process.resume(fault)
        if process.error is not None and not getattr(process, "told", False):
            process.told = True
            self.world.judge.note(f"{process.name} ends: {process.error!r}"[:300])

    # --- what must hold -----------------------------------------------------------------------

    def _judge(self) -> None:
        world = self.world
        exact = world.judge._delivered()
        at_once: dict[str, list[MixedDriver]] = defaultdict(list)
        for each in world.at_once:
            at_once[each.row].append(each.driver)
        for row in exact.keys() | at_once.keys():
            by = Counter(driver.guarantee for driver in at_once[row])
            if exact[row] > 1:
                self._broken(f"{row} came twice, exactly once")
            if exact[row] and by:
                self._broken(f"{row} came exactly once and {dict(by)}")
            if by["at_most_once"] > 1:
                self._broken(f"{row} came twice, at most once")
            first = [each for each in at_once[row] if each.guarantee == "at_most_once"]
            others = [each for each in at_once[row] if each.guarantee == "at_least_once"]
            if any(one.term > each.term for one in first for each in others):
                self._broken(f"{row} was written at most once after at least once")

    def _end(self) -> None:
        world = self.world
        world.scheduler.crash_all()
        world.judge.note("--- everybody is dead; somebody goes on, with a guarantee that is let in")
        for _ in range(12):
            if self._ends_so():
                break
            self._judge()
        else:
            self._broken("no guarantee goes on")
        self._judge()
        seen = world.judge._delivered() + Counter(each.row for each in world.at_once)
        lost = [
            row
            for unit in world.units
            for rows in unit
            for row in rows
            if not seen[row] and "at_most_once" not in world.begun[row]
        ]
        if lost:
            self._broken(f"lost {lost}")

    def _ends_so(self) -> bool:
        """With exactly once, or what it had before."""
        for guarantee in GUARANTEES:
            last = self.world.start(guarantee, Cut())
            self.world.scheduler.run(last)
            self.world.judge.note(f"{last.name}: {last.error!r}"[:300])
            if last.error is None:
                return True
            if not isinstance(last.error, OwnershipError):
                return False
        return self._broken("every guarantee is refused")

    def _broken(self, what: str) -> bool:
        trace = "\n".join(self.world.judge.history)
        raise ProtocolBroken(f"seed {self.seed}: {what}\n{trace}")
