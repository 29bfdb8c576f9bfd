"""The world of the model: one broker, one checkpoint, and how drivers and recoveries live in it.

What runs is the code of the package; the parts of Spark that it stands on are played here: the
offset log and the commit log with their one writer, tasks with attempts, the purge of old files.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from obstore.exceptions import AlreadyExistsError

from airflow_eos.checkpoint import CheckpointStore, DecisionLog, Pipeline, claim
from airflow_eos.errors import (
    DecisionNeededError,
    EosError,
    FencedError,
    KafkaUnavailableError,
    PromiseLostError,
    StoreError,
    SupersededError,
)
from airflow_eos.kafka.coordinator import TransactionCoordinator
from airflow_eos.recovery import Plan, gather, make_plan, read_rulings
from airflow_eos.recovery.execute import execute
from airflow_eos.sinks.committer import KafkaCommitter
from airflow_eos.sinks.kafka import PlannedSink
from airflow_eos.sinks.protocol import TaskReport
from airflow_eos.sinks.query import ExactlyOnceBatch
from airflow_eos.sinks.replay import promise_in_flight
from airflow_eos.transactions import OffsetRange, PreparedTransaction
from tests.model import wire as model_wire
from tests.model.broker import PARTITIONS, Broker, Rows, Transaction
from tests.model.frames import Cut, Frame, fingerprint
from tests.model.judge import Judge
from tests.model.scheduler import Process, Scheduler, current, external
from tests.model.store import SteppedStore
from tests.support.planned import LazyTasks

PREFIX = "etl"
TIMEOUT_MS = 60_000
TASK_ATTEMPTS = 2


class SparkError(Exception):
    """Spark ends the query: a conflict in its logs, a failed job, a store that did not answer."""


ACCEPTED = (
    SparkError,
    SupersededError,
    PromiseLostError,
    DecisionNeededError,
    KafkaUnavailableError,
    StoreError,
)
"""What may end a driver or a recovery under the faults of this model; the restart goes on."""


class World:
    """Everything outside the processes, and the ways to start one."""

    def __init__(self, batches: Sequence[Sequence[Rows]], version: int, retained: int) -> None:
        self.batches = batches
        self.retained = retained
        self.closing = False
        self.plans: list[Plan] = []
        self.scheduler = Scheduler()
        self.judge = Judge(batches)
        self.broker = Broker(version, self.judge.ending)
        self.judge.broker = self.broker
        self.objects = SteppedStore(self.judge)
        self.store = CheckpointStore(self.objects, "memory")
        self.wire: Any = model_wire.FakeWire(self.broker)
        self._started = 0
        claim(
            self.store,
            Pipeline(
                transactional_id_prefix=PREFIX,
                cluster_id=model_wire.CLUSTER_ID,
                sink="kafka:out",
                created_at_ms=0,
                created_by="the model",
            ),
        )

    def start_driver(self, cut: Cut) -> Process:
        self._started += 1
        driver = Driver(self, f"driver {self._started}", cut)
        return self.scheduler.spawn(driver.name, driver.run, ACCEPTED)

    def start_recovery(self, stale: Plan | None = None) -> Process:
        self._started += 1
        name = f"recovery {self._started}"
        return self.scheduler.spawn(name, lambda: self._recover(name, stale), ACCEPTED)

    def _recover(self, name: str, stale: Plan | None) -> None:
        plan = stale or make_plan(gather(self.store, self.wire))
        self.plans.append(plan)
        execute(plan, self.store, self.wire, force=True, executed_by=name)


class Driver:
    """A Spark driver: recovery, then batch after batch until there is no more input."""

    def __init__(self, world: World, name: str, cut: Cut) -> None:
        self.world = world
        self.name = name
        self.cut = cut

    def run(self) -> None:
        world = self.world
        decisions = DecisionLog(world.store)
        plan = make_plan(gather(world.store, world.wire))
        execute(plan, world.store, world.wire, force=True, executed_by=self.name)

        def on_phase(batch_id: int, phase: str) -> None:
            if phase == "waiting":
                decisions.prune(batch_id - world.retained)

        sink: Any = ModelSink(self)
        deliver: Any = ExactlyOnceBatch(
            sink if promise_in_flight(world.store) else PlannedSink(sink),
            ModelCommitter(world.wire, None, PREFIX),  # type: ignore[arg-type]
            decisions,
            rulings=partial(read_rulings, world.store),
            driver=self.name,
            on_phase=on_phase,
        )
        planned, closed = self._latest("offsets"), self._latest("commits")
        batch = max(planned, 0) if planned > closed else closed + 1
        while batch < len(world.batches) and not (world.closing and batch > planned):
            if batch > planned:
                self._log("offsets", batch, b'{"batchWatermarkMs":0,"batchTimestampMs":0}\n{}')
            frame = Frame(self.cut.of(world.batches[batch]))
            world.judge.batch_called(self.name)
            deliver(deliver.streamed(frame), batch)
            if frame.evaluations != 1:
                world.judge.fail(f"step 1: state of batch {batch} evaluated {frame.evaluations}x")
            self._log("commits", batch, b"{}")
            self._purge(batch - world.retained)
            batch += 1

    def _latest(self, log: str) -> int:
        return max((int(entry.name) for entry in self.world.store.list(log)), default=-1)

    def _log(self, log: str, batch: int, content: bytes) -> None:
        """Spark's MetadataLog.add, which ends the query where another driver was first."""
        try:
            self.world.objects.put(f"{log}/{batch}", b"v1\n" + content, mode="create")
        except (AlreadyExistsError, OSError) as error:
            raise SparkError(f"CONCURRENT_STREAM_LOG_UPDATE {log}/{batch}") from error

    def _purge(self, before: int) -> None:
        for log in ("offsets", "commits"):
            for old in range(max(0, before)):
                if self.world.store.head(f"{log}/{old}") is not None:
                    self.world.store.delete([f"{log}/{old}"])


@dataclass
class ModelSink:
    """Runs each task as a process of its own, with Spark's attempts."""

    driver: Driver
    transactional_id_prefix = PREFIX

    def rows(self, df: Any) -> Any:
        return df

    def streamed(self, df: Any) -> Any:
        return df

    def tasks(self, rows: Any, *, transactional: bool = True) -> Any:
        assert transactional
        return LazyTasks(lambda: self.prepare(rows))

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
        identity = coordinator.init(f"{PREFIX}-{task}-{attempt}", TIMEOUT_MS)
        partition = zlib.crc32("".join(content).encode()) % PARTITIONS
        try:
            written = external(
                "Produce",
                lambda: world.broker.produce(identity, partition, content),
                model_wire.no_answer,
            )
        except EosError:
            coordinator.end([identity], commit=False)
            raise
        return TaskReport(task, len(content), fingerprint(content), _prepared(written))


def _prepared(written: Transaction) -> PreparedTransaction:
    return PreparedTransaction(
        transactional_id=written.identity.transactional_id,
        producer_id=written.identity.producer_id,
        producer_epoch=written.identity.producer_epoch,
        written=(OffsetRange(model_wire.TOPIC, written.partition, written.first, written.last),),
        rows=len(written.rows),
        fingerprint=fingerprint(written.rows),
        opened_at_ms=written.started_ms,
        timeout_ms=written.timeout_ms,
    )


class ModelCommitter(KafkaCommitter):
    """The real one, but for reading rows back with Spark."""

    def delivered(self, _spark: Any, transactions: Sequence[PreparedTransaction]) -> Any:
        broker: Broker = self._wire._broker  # type: ignore[attr-defined]
        found = [broker.transactions[t.identity] for t in transactions]
        if any(t.first < broker.partitions[t.partition].start for t in found):
            raise SparkError("rows that were delivered are past retention")
        return external("read back", lambda: Frame([t.rows for t in found]), model_wire.no_answer)
