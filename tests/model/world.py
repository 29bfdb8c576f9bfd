"""The world of the model: one broker, one checkpoint, and how drivers and recoveries live in it.

What runs is the code of the package; the parts of Spark that it stands on are played here and in
``spark.py``: the two logs, tasks with attempts, the purge of old files. A batch is a range of units
of the source; how many units, each driver chooses by itself, as Spark does by when it looks.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from msgspec import structs

from airflow_eos.core.checkpoint import (
    CheckpointStore,
    DecisionLog,
    Heartbeat,
    OffsetLog,
    Tenure,
    claim,
    newest_term,
)
from airflow_eos.core.checkpoint.heartbeat import write_heartbeat
from airflow_eos.core.checkpoint.rulings import read_acceptance
from airflow_eos.core.checkpoint.topics import LostInput
from airflow_eos.core.delivery.batch import Authority, ExactlyOnceBatch
from airflow_eos.core.delivery.outputs import InPlanSink
from airflow_eos.core.delivery.port import TaskReport
from airflow_eos.core.delivery.replay import ReplayChecks, promise_in_flight
from airflow_eos.core.delivery.takeover import require_admitted, take_over
from airflow_eos.core.protocol.decision import DEFAULT_PARTICIPANT, PreparedWork
from airflow_eos.core.protocol.participant import Participant
from airflow_eos.core.protocol.participant_group import reach_all
from airflow_eos.core.recovery.execute import execute
from airflow_eos.errors import (
    CheckpointError,
    DecisionNeededError,
    EosError,
    FencedError,
    InputLostError,
    KafkaUnavailableError,
    OvertakenError,
    OwnershipError,
    PromiseLostError,
    RecoveryError,
    StoreError,
    SupersededError,
    TransactionError,
)
from airflow_eos.kafka.participant import KafkaParticipant
from airflow_eos.kafka.transactions.coordinator import TransactionCoordinator, end_transactions
from airflow_eos.kafka.transactions.identity import (
    NEVER_MS,
    OffsetRange,
    PreparedTransaction,
    TransactionIdentity,
    as_transaction,
    as_work,
    transactional_id_of,
)
from airflow_eos.recovery import Plan, gather, make_plan, read_rulings
from tests.model import wire as model_wire
from tests.model.broker import PARTITIONS, Broker, Rows, Transaction
from tests.model.frames import Cut, Frame, fingerprint
from tests.model.judge import Judge
from tests.model.ledger import Records, SteppedLedger
from tests.model.scheduler import Process, Scheduler, current, external
from tests.model.spark import MicroBatches, Planned, SparkError, Unit
from tests.model.store import DiskStore, SparksFiles, SteppedStore
from tests.support.authority import LazyTasks, OneParticipant
from tests.support.beats import heartbeat
from tests.support.pipelines import kafka_pipeline

PREFIX = "etl"
OUTPUTS = {DEFAULT_PARTICIPANT: PREFIX, "copy": "copied"}
"""The prefix of each output, where there are several: both in one decision."""

LOCATION = "memory"
TIMEOUT_MS = 60_000
TASK_ATTEMPTS = 2
_OVERTAKEN_AT_MOST = 3

REFUSALS = (OwnershipError, CheckpointError)
"""What refuses an older copy of the checkpoint, or one that was torn; see ``History``."""

ACCEPTED = (
    *REFUSALS,
    SparkError,
    SupersededError,
    PromiseLostError,
    RecoveryError,
    DecisionNeededError,
    InputLostError,
    KafkaUnavailableError,
    StoreError,
)
"""What may end a driver or a recovery under the faults of this model; the restart goes on."""


class World:
    """Everything outside the processes, and the ways to start one."""

    def __init__(
        self,
        units: Sequence[Unit],
        version: int,
        retained: int,
        *,
        disk: bool = False,
        several: bool = False,
        standbys: bool = False,
        two_phase: bool = False,
    ) -> None:
        self.two_phase = two_phase
        self.units = list(units)
        self.outputs = OUTPUTS if several else {DEFAULT_PARTICIPANT: PREFIX}
        self.standbys = standbys
        self.retained = retained
        self.plans: list[Plan] = []
        self.copies: list[dict[str, bytes]] = []
        self.records: Records = []
        self.scheduler = Scheduler()
        self.judge = Judge([written(unit, name) for name in self.outputs for unit in units])
        self.broker = Broker(version, self.judge.ending)
        self.judge.broker = self.broker
        self.objects = SteppedStore(self.judge)
        self.store = (DiskStore if disk else CheckpointStore)(self.objects, LOCATION)
        self.skipped = False
        self.removed: dict[str, bytes] = {}
        self.begins = 0
        """The first unit that the input still has; retention passes those before."""
        self.compacted = False
        self.leaves_out = False
        """Whether the source leaves out what is gone (failOnDataLoss=false), and does not fail."""
        self.wire: Any = model_wire.FakeWire(self.broker)
        self._started = 0
        self._planned = 0
        pipeline = kafka_pipeline(PREFIX, model_wire.CLUSTER_ID)
        claim(self.store, structs.replace(pipeline, participants=self.participant().members))

    def start_driver(self, cut: Cut) -> Process:
        self._started += 1
        driver = Driver(self, f"driver {self._started}", cut)
        return self.scheduler.spawn(driver.name, driver.run, ACCEPTED)

    def start_recovery(self, stale: Plan | None = None) -> Process:
        self._started += 1
        name = f"recovery {self._started}"
        return self.scheduler.spawn(name, lambda: self._recover(name, stale), ACCEPTED)

    def planned_at(self) -> int:
        """Spark's time stamp of a new plan: no two are equal."""
        self._planned += 1
        return self._planned

    def skip_a_batch(self) -> bool:
        """Somebody repartitions the state and does not wait for the batch in flight."""
        try:
            done = MicroBatches(self.store, SparksFiles(self.objects)).skip(self.planned_at())
        except SparkError:
            return False
        self.judge.put_back(self.objects.copy())
        self.skipped = self.skipped or done
        return done

    def lose_input(self, *, retention: bool, until: int, lost: Callable[[], bool]) -> None:
        """Rows of the first units are gone: all, or those of which a later row has the key."""
        for number in range(until):
            kept = [
                tuple(row for row in rows if not (retention or lost()))
                for rows in self.units[number]
            ]
            for name in self.outputs:
                self.judge.vanish(written(self.units[number], name), written(kept, name))
            self.units[number] = kept
        if retention:
            self.begins = max(self.begins, until)
        self.compacted = self.compacted or not retention

    def lost_of(self, planned: Planned) -> LostInput:
        """What the topic tells of rows that the batch was to read."""
        gone = min(self.begins, planned.end) - planned.start
        past = {("in", 0): gone} if gone > 0 else {}
        return LostInput(past, ("in",) if self.compacted else (), skipped=self.leaves_out)

    def _recover(self, name: str, stale: Plan | None) -> None:
        participant = self.participant()
        plan = stale or make_plan(gather(self.store, participant))
        self.plans.append(plan)
        execute(plan, self.store, participant, force=True, executed_by=name)

    def participant(self) -> Participant:
        """Kafka, as one process reaches it: with notes of its own."""
        return reach_all(partial(self._reach, name) for name in self.outputs)

    def _reach(self, name: str) -> Participant:
        ledger: Any = SteppedLedger(self.records, self.outputs[name])
        return KafkaParticipant(self.wire, ledger, name=name)


class Driver:
    """A Spark driver: it takes over, then runs batch after batch until there is no more input."""

    def __init__(self, world: World, name: str, cut: Cut) -> None:
        self.world = world
        self.name = name
        self.cut = cut
        self._running: Planned

    def run(self) -> None:
        world = self.world
        decisions = DecisionLog(world.store)
        participant = world.participant()
        tenure, offsets = self._taken(decisions, participant)

        def on_phase(batch_id: int, phase: str) -> None:
            if phase == "waiting":
                decisions.prune(batch_id - world.retained)
                write_heartbeat(world.store, _heartbeat(tenure.term.number, batch_id))

        authority: Any = Authority(
            tenure, offsets, participant, evaluated_at=lambda _: self._running.planned_at_ms
        )
        authority._syncing = Late()
        sink: Any = ModelSink(self)
        deliver: Any = ExactlyOnceBatch(
            sink if promise_in_flight(world.store) else InPlanSink(sink),
            participant,
            decisions,
            authority,
            rulings=partial(read_rulings, world.store),
            accepted=partial(read_acceptance, world.store),
            driver=self.name,
            on_phase=on_phase,
            reading=ReplayChecks(lost=lambda: world.lost_of(self._running)),
        )
        spark = MicroBatches(world.store, SparksFiles(world.objects))
        spark.identify()
        planned = spark.restored()
        while planned is not None or spark.end < len(world.units):
            if planned is None:
                left = len(world.units) - spark.end
                planned = spark.plan(min(self.cut.reach, left), world.planned_at())
            self._running = planned
            frame = Frame(self.cut.of(_tasks(world.units[planned.start : planned.end])))
            frame.fails = partial(self._fails, planned)
            world.judge.batch_called(self.name)
            deliver(deliver.streamed(frame), planned.batch)
            if frame.evaluations != 1:
                world.judge.fail(f"step 1: {planned} was evaluated {frame.evaluations} times")
            spark.complete(planned.batch, world.retained)
            planned = None

    def _taken(self, decisions: DecisionLog, participant: Participant) -> tuple[Tenure, OffsetLog]:
        """As a start; or as one that has stood by: it looks, and takes the term after that one.

        What it saw of the other driver is anything: it may live, be dead, or come again. The gate
        was asked while that one still ended, or has not answered then.
        """
        store = self.world.store
        for left in reversed(range(_OVERTAKEN_AT_MOST)):
            admitted = after = None
            if self.world.standbys:
                with suppress(EosError):
                    admitted = require_admitted(store, participant, self.name, None)
                after = newest_term(store)
            try:
                return take_over(
                    store, decisions, participant, driver=self.name, admitted=admitted, after=after
                )
            except OvertakenError:
                if not left:
                    raise
        raise AssertionError

    def _fails(self, planned: Planned) -> None:
        """Spark's source looks where its range begins, and fails by itself."""
        if self.world.lost_of(planned).past_retention and not self.world.leaves_out:
            raise InputGoneError(f"{planned}: offsets are out of range")


class InputGoneError(SparkError):
    """The source's own word; docs/recovery.md says what to do: failOnDataLoss=false."""


class Late:
    """A thread that does nothing before somebody waits for it."""

    def submit(self, operation: Any, *given: Any) -> Any:
        return SimpleNamespace(result=lambda: operation(*given))


def _tasks(units: Sequence[Unit]) -> list[Rows]:
    """Task by task what a range of units holds: a partition's rows go to one task."""
    width = max((len(unit) for unit in units), default=0)
    return [
        tuple(row for unit in units if task < len(unit) for row in unit[task])
        for task in range(width)
    ]


def written(tasks: Sequence[Rows], name: str) -> list[Rows]:
    """The rows of an output: those of the other ones are others."""
    if name == DEFAULT_PARTICIPANT:
        return list(tasks)
    return [tuple(f"{row}'" for row in rows) for rows in tasks]


def _heartbeat(term: int, batch_id: int) -> Heartbeat:
    return heartbeat(term=term, batch_id=batch_id)


@dataclass
class ModelSink(OneParticipant):
    """Runs each task as a process of its own, with Spark's attempts.

    All outputs, or the one that is ``alone``: it is given that one's rows.
    """

    driver: Driver
    alone: str = ""

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.alone,) if self.alone else tuple(self.driver.world.outputs)

    def part(self, name: str) -> Any:
        assert name in self.names
        return replace(self, alone=name)

    def rows(self, df: Any) -> Any:
        return Frame(written(df.tasks, self.alone), source=df) if self.alone else df

    def tasks(self, rows: Any, *, only: Any = None, transactional: bool = True) -> Any:
        assert transactional
        assert only is None
        return LazyTasks(lambda: self.prepare(rows))

    def delivered(self, _spark: Any, works: Sequence[PreparedWork]) -> Any:
        broker = self.driver.world.broker
        found = [broker.transactions[as_transaction(work).identity] for work in works]
        if any(t.emptied or t.first < broker.partitions[t.partition].start for t in found):
            raise TransactionError("rows that were delivered are past retention")
        return external("read back", lambda: Frame([t.rows for t in found]), model_wire.no_answer)

    def prepare(self, rows: Any, *, only: Collection[int] | None = None) -> list[TaskReport]:
        tasks = rows.evaluate()
        contents = {name: tasks if self.alone else written(tasks, name) for name in self.names}
        reports = {
            (number, name): TaskReport(number, len(content), fingerprint(content), participant=name)
            for name, of_tasks in contents.items()
            for number, content in enumerate(of_tasks)
        }
        left = {n for n, rows in enumerate(tasks) if rows and (only is None or n in only)}
        for attempt in range(TASK_ATTEMPTS):
            started = {
                n: self._start(n, attempt, {name: contents[name][n] for name in self.names})
                for n in sorted(left)
            }
            for number, process in started.items():
                self._await(process)
                if process.result is not None:
                    reports |= {(number, each.participant): each for each in process.result}
                    left.remove(number)
            if not left:
                return list(reports.values())
        raise SparkError(f"tasks {sorted(left)} failed {TASK_ATTEMPTS} times")

    def _start(self, task: int, attempt: int, content: Mapping[str, Rows]) -> Process:
        process = self.driver.world.scheduler.spawn(
            f"{self.driver.name} task {task}.{attempt}",
            lambda: self._task(task, attempt, content),
            (FencedError, KafkaUnavailableError),
        )
        process.looked_at = self.driver.world.judge.looked_at(self.driver.name)
        return process

    def _await(self, task: Process) -> None:
        """Until the task has ended or its executor is lost; a lost one may go on, unheard."""
        driver = current()
        assert driver is not None
        driver.wait_until(lambda: task.given_up or not task.alive, f"wait for {task.name}")

    def _task(self, task: int, attempt: int, content: Mapping[str, Rows]) -> list[TaskReport]:
        """One transaction for each output; whoever cannot write one ends those that it has."""
        world, begun = self.driver.world, list[TransactionIdentity]()
        coordinator = TransactionCoordinator(world.wire)
        reports = []
        try:
            for name, rows in content.items():
                prefix = world.outputs[name]
                identity, _ = coordinator.take(
                    transactional_id_of(prefix, task, attempt),
                    TIMEOUT_MS,
                    "auto" if world.two_phase else False,
                )
                begun.append(identity)
                wrote = external(
                    "Produce",
                    partial(world.broker.produce, identity, _partition_of(rows), rows),
                    model_wire.no_answer,
                )
                age_ms = world.broker.now_ms - wrote.started_ms
                work = _prepared(wrote, age_ms, name)
                reports.append(TaskReport(task, len(rows), fingerprint(rows), work, name))
        except EosError:
            if begun:
                end_transactions(world.wire, begun, commit=False)
            raise
        return reports


def _partition_of(rows: Rows) -> int:
    return zlib.crc32("".join(rows).encode()) % PARTITIONS


def _prepared(written: Transaction, age_ms: int, name: str) -> PreparedWork:
    """As a task reports it: opened that long ago by the driver's clock, which is the real one."""
    transaction = PreparedTransaction(
        transactional_id=written.identity.transactional_id,
        producer_id=written.identity.producer_id,
        producer_epoch=written.identity.producer_epoch,
        written=(OffsetRange(model_wire.TOPIC, written.partition, written.first, written.last),),
        rows=len(written.rows),
        fingerprint=fingerprint(written.rows),
        opened_at_ms=time.time_ns() // 1_000_000 - age_ms,
        timeout_ms=None if written.timeout_ms == NEVER_MS else written.timeout_ms,
    )
    return as_work(transaction, name)
