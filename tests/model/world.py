"""The world of the model: one broker, one checkpoint, and how drivers and recoveries live in it.

What runs is the code of the package; the parts of Spark that it stands on are played here and in
``spark.py``: the two logs, tasks with attempts, the purge of old files. A batch is a range of units
of the source; how many units, each driver chooses by itself, as Spark does by when it looks.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from airflow_eos.checkpoint import (
    CheckpointStore,
    DecisionLog,
    Heartbeat,
    OffsetLog,
    Tenure,
    claim,
    newest_term,
)
from airflow_eos.checkpoint.heartbeat import write_heartbeat
from airflow_eos.checkpoint.rulings import read_acceptance
from airflow_eos.delivery.batch import Authority, ExactlyOnceBatch
from airflow_eos.delivery.outputs import InPlanSink
from airflow_eos.delivery.port import TaskReport
from airflow_eos.delivery.replay import promise_in_flight
from airflow_eos.delivery.takeover import take_over
from airflow_eos.errors import (
    CheckpointError,
    DecisionNeededError,
    EosError,
    FencedError,
    KafkaUnavailableError,
    OvertakenError,
    OwnershipError,
    PromiseLostError,
    RecoveryError,
    StoreError,
    SupersededError,
    TransactionError,
)
from airflow_eos.kafka.transactions.coordinator import TransactionCoordinator, end_transactions
from airflow_eos.kafka.transactions.identity import (
    OffsetRange,
    PreparedTransaction,
    as_transaction,
    as_work,
    transactional_id_of,
)
from airflow_eos.kinds.kafka.participant import KafkaParticipant
from airflow_eos.protocol.decision import DEFAULT_PARTICIPANT, PreparedWork
from airflow_eos.recovery import Plan, gather, make_plan, read_rulings
from airflow_eos.recovery.execute import execute
from tests.model import wire as model_wire
from tests.model.broker import PARTITIONS, Broker, Rows, Transaction
from tests.model.frames import Cut, Frame, fingerprint
from tests.model.judge import Judge
from tests.model.ledger import Records, SteppedLedger
from tests.model.scheduler import Process, Scheduler, current, external
from tests.model.spark import MicroBatches, Planned, SparkError, Unit
from tests.model.store import DiskStore, SparksFiles, SteppedStore
from tests.support.beats import heartbeat
from tests.support.pipelines import kafka_pipeline
from tests.support.planned import LazyTasks, OneParticipant

PREFIX = "etl"
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
        standbys: bool = False,
    ) -> None:
        self.units = units
        self.standbys = standbys
        self.retained = retained
        self.plans: list[Plan] = []
        self.copies: list[dict[str, bytes]] = []
        self.records: Records = []
        self.scheduler = Scheduler()
        self.judge = Judge(units)
        self.broker = Broker(version, self.judge.ending)
        self.judge.broker = self.broker
        self.objects = SteppedStore(self.judge)
        self.store = (DiskStore if disk else CheckpointStore)(self.objects, LOCATION)
        self.skipped = False
        self.wire: Any = model_wire.FakeWire(self.broker)
        self._started = 0
        self._planned = 0
        claim(self.store, kafka_pipeline(PREFIX, model_wire.CLUSTER_ID))

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

    def _recover(self, name: str, stale: Plan | None) -> None:
        participant = self.participant()
        plan = stale or make_plan(gather(self.store, participant))
        self.plans.append(plan)
        execute(plan, self.store, participant, force=True, executed_by=name)

    def participant(self) -> KafkaParticipant:
        """Kafka, as one process reaches it: with notes of its own."""
        ledger: Any = SteppedLedger(self.records, PREFIX)
        return KafkaParticipant(self.wire, ledger, name=DEFAULT_PARTICIPANT)


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
        )
        spark = MicroBatches(world.store, SparksFiles(world.objects))
        if world.store.is_on_a_disk:  # nowhere else is anything lost of it
            spark.identify()
        planned = spark.restored()
        while planned is not None or spark.end < len(world.units):
            if planned is None:
                left = len(world.units) - spark.end
                planned = spark.plan(min(self.cut.reach, left), world.planned_at())
            self._running = planned
            frame = Frame(self.cut.of(_tasks(world.units[planned.start : planned.end])))
            world.judge.batch_called(self.name)
            deliver(deliver.streamed(frame), planned.batch)
            if frame.evaluations != 1:
                world.judge.fail(f"step 1: {planned} was evaluated {frame.evaluations} times")
            spark.complete(planned.batch, world.retained)
            planned = None

    def _taken(
        self, decisions: DecisionLog, participant: KafkaParticipant
    ) -> tuple[Tenure, OffsetLog]:
        """As a start; or as one that has stood by: it looks, and takes the term after that one.

        What it saw of the other driver is anything: it may live, be dead, or come again.
        """
        store = self.world.store
        after = newest_term(store) if self.world.standbys else None
        for left in reversed(range(_OVERTAKEN_AT_MOST)):
            try:
                return take_over(store, decisions, participant, driver=self.name, after=after)
            except OvertakenError:
                if not left:
                    raise
                after = newest_term(store)
        raise AssertionError


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


def _heartbeat(term: int, batch_id: int) -> Heartbeat:
    return heartbeat(term=term, batch_id=batch_id)


@dataclass
class ModelSink(OneParticipant):
    """Runs each task as a process of its own, with Spark's attempts."""

    driver: Driver

    def tasks(self, rows: Any, *, only: Any = None, transactional: bool = True) -> Any:
        assert transactional
        assert only is None
        return LazyTasks(lambda: self.prepare(rows))

    def delivered(self, _spark: Any, works: Sequence[PreparedWork]) -> Any:
        broker = self.driver.world.broker
        found = [broker.transactions[as_transaction(work).identity] for work in works]
        if any(t.first < broker.partitions[t.partition].start for t in found):
            raise TransactionError("rows that were delivered are past retention")
        return external("read back", lambda: Frame([t.rows for t in found]), model_wire.no_answer)

    def prepare(self, rows: Any, *, only: Collection[int] | None = None) -> list[TaskReport]:
        tasks = rows.evaluate()
        reports = {
            number: TaskReport(number, len(content), fingerprint(content))
            for number, content in enumerate(tasks)
        }
        left = {n: c for n, c in enumerate(tasks) if c and (only is None or n in only)}
        for attempt in range(TASK_ATTEMPTS):
            for process in [self._start(n, attempt, content) for n, content in left.items()]:
                self._await(process)
                if process.result is not None:
                    reports[process.result.task] = process.result
                    del left[process.result.task]
            if not left:
                return list(reports.values())
        raise SparkError(f"tasks {sorted(left)} failed {TASK_ATTEMPTS} times")

    def _start(self, task: int, attempt: int, content: Rows) -> Process:
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

    def _task(self, task: int, attempt: int, content: Rows) -> TaskReport:
        world = self.driver.world
        coordinator = TransactionCoordinator(world.wire)
        identity = coordinator.init(transactional_id_of(PREFIX, task, attempt), TIMEOUT_MS)
        partition = zlib.crc32("".join(content).encode()) % PARTITIONS
        try:
            written = external(
                "Produce",
                lambda: world.broker.produce(identity, partition, content),
                model_wire.no_answer,
            )
        except EosError:
            end_transactions(world.wire, [identity], commit=False)
            raise
        age_ms = world.broker.now_ms - written.started_ms
        return TaskReport(task, len(content), fingerprint(content), _prepared(written, age_ms))


def _prepared(written: Transaction, age_ms: int) -> PreparedWork:
    """As a task reports it: opened that long ago by the driver's clock, which is the real one."""
    transaction = PreparedTransaction(
        transactional_id=written.identity.transactional_id,
        producer_id=written.identity.producer_id,
        producer_epoch=written.identity.producer_epoch,
        written=(OffsetRange(model_wire.TOPIC, written.partition, written.first, written.last),),
        rows=len(written.rows),
        fingerprint=fingerprint(written.rows),
        opened_at_ms=time.time_ns() // 1_000_000 - age_ms,
        timeout_ms=written.timeout_ms,
    )
    return as_work(transaction, DEFAULT_PARTICIPANT)
