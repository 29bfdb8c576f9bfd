"""Spark's Python workers in small: processes that run tasks, lost and replaced when killed."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from airflow_eos.arrow.producer import writer as kafka_writer
from airflow_eos.core.delivery.port import TaskReport
from airflow_eos.core.delivery.task import HASH_COLUMN, SinkTask, TaskOutput
from airflow_eos.errors import KafkaError, StoreError
from airflow_eos.kafka.transactions.identity import KIND, as_transaction
from tests.chaos.journal import Journal
from tests.chaos.settings import FILES, POSTGRES
from tests.chaos.spark_data import Row, SparkError

AT_ONCE = 2
SPARES = 3
PIECE_ROWS = 12

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass
class Worker:
    pid: int
    pipe: Connection


class WorkerPool:
    """Two workers at a time. All are forked before the driver opens anything.

    A worker outlives its driver until its task is done, as an executor does that lost touch.
    """

    def __init__(self, journal_file: Path, *, task_attempts: int) -> None:
        self._task_attempts = task_attempts
        self._idle: list[Worker] = []
        for _ in range(AT_ONCE + SPARES):
            self._idle.append(self._fork(journal_file))

    def run(self, task: Any, tasks: Sequence[Iterable[Row]]) -> list[TaskReport]:
        """Run every task, again where its worker died or it failed; raises as Spark would."""
        waiting = [(number, 0) for number in range(len(tasks))]
        busy: dict[Connection, tuple[Worker, int, int]] = {}
        reports: dict[int, tuple[TaskReport, ...]] = {}
        while waiting or busy:
            while waiting and len(busy) < AT_ONCE:
                number, attempt = waiting.pop(0)
                worker = self._take()
                if not self._send(worker, (task, number, attempt, tasks[number])):
                    waiting.insert(0, (number, attempt))
                    continue
                busy[worker.pipe] = (worker, number, attempt)
            ready = wait(list(busy))
            for pipe in [pipe for pipe in busy if pipe in ready]:
                worker, number, attempt = busy.pop(pipe)
                answer = self._answer(worker)
                if isinstance(answer, tuple):
                    reports[number] = answer
                elif attempt + 1 < self._task_attempts:
                    waiting.append((number, attempt + 1))
                else:
                    raise SparkError(f"task {number} failed {attempt + 1} times: {answer}")
        return [report for number in sorted(reports) for report in reports[number]]

    def _take(self) -> Worker:
        if not self._idle:
            raise SparkError("no executor is left")
        return self._idle.pop(0)

    @staticmethod
    def _send(worker: Worker, what: tuple[Any, ...]) -> bool:
        """False where the worker was killed while it was idle: no attempt of a task is lost."""
        try:
            worker.pipe.send(what)
        except OSError:
            os.waitpid(worker.pid, 0)
            return False
        return True

    def _answer(self, worker: Worker) -> tuple[TaskReport, ...] | str:
        try:
            encoded, error = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            os.waitpid(worker.pid, 0)
            return "its worker was lost"
        self._idle.append(worker)
        return error or msgspec.json.decode(encoded, type=tuple[TaskReport, ...])

    def _fork(self, journal_file: Path) -> Worker:
        ours, theirs = Pipe()
        pid = os.fork()
        if pid:
            theirs.close()
            return Worker(pid, ours)
        ours.close()
        for other in self._idle:
            other.pipe.close()  # or it would never see the driver's end close
        try:
            serve(theirs, Journal(journal_file, f"worker {os.getpid()}"))
        finally:
            os._exit(0)


def serve(pipe: Connection, journal: Journal) -> None:
    """A worker's life: tasks until the driver is gone."""
    # What is gathered up to 8 MiB in earnest is sent batch by batch here: more requests to lose.
    kafka_writer.GATHER_BYTES = kafka_writer.GATHER_BYTES_A_PARTITION = 1
    while True:
        try:
            task, number, attempt, rows = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer = (run_task(task, number, attempt, rows, journal), "")
        except (KafkaError, StoreError) as error:
            journal.note("task", error=f"{type(error).__name__}: {error}")
            answer = (b"", f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - told by its text
            told = "task" if str(error).startswith("failpoint") else "crash"
            journal.note(told, text=f"task {number}.{attempt}: {type(error).__name__}: {error}")
            answer = (b"", repr(error))
        try:
            pipe.send(answer)
        except OSError:
            return


def run_task(
    task: SinkTask, number: int, attempt: int, rows: Iterable[Row], journal: Journal
) -> bytes:
    run = uuid.uuid4().hex[:12]
    reports = task.run(number, attempt, record_batches(rows, run, task.outlets))
    # Before anybody can name it: a reader finds out whose rows it got.
    for work in (report.work for report in reports if report.work is not None):
        if work.kind == KIND:
            transaction = msgspec.to_builtins(as_transaction(work))
            journal.note("prepared", run=run, transaction=transaction)
            _make_known(journal.file.parent / "runs", run, transaction)
        else:
            _make_known(journal.file.parent / "runs", f"{run}.{work.participant}", work.key)
    return msgspec.json.encode(reports)


def _make_known(runs: Path, name: str, what: object) -> None:
    (runs / f".{name}").write_bytes(msgspec.json.encode(what))
    (runs / f".{name}").rename(runs / name)


def record_batches(
    rows: Iterable[Row], run: str, outlets: Sequence[TaskOutput] = ()
) -> Iterator[pa.RecordBatch]:
    left = iter(rows)
    while piece := list(islice(left, PIECE_ROWS)):
        yield record_batch(piece, run, outlets)


def record_batch(rows: Sequence[Row], run: str, outlets: Sequence[TaskOutput]) -> pa.RecordBatch:
    """Rows as Spark hands them over: those of one output, or a column of structs for each."""
    columns = {each.column: _typed(rows, run, each) for each in outlets if each.column is not None}
    if not columns:
        return _typed(rows, run, outlets[0] if outlets else None)
    return pa.RecordBatch.from_pydict(
        {name: batch.to_struct_array() for name, batch in columns.items()}
    )


def _typed(rows: Sequence[Row], run: str, outlet: TaskOutput | None) -> pa.RecordBatch:
    """In the types of the sink; the run travels where no hash covers it."""
    hashes = [hashlib.blake2b(b"\0".join(row), digest_size=8).digest() for row in rows]
    if outlet is not None and outlet.participant in (POSTGRES, FILES):
        carried = {"run": pa.array([run] * len(rows))}
    else:
        headers = [[{"key": "run", "value": run.encode()}]] * len(rows)
        carried = {"headers": pa.array(headers, _HEADERS)}
    return pa.RecordBatch.from_pydict(
        {
            "value": pa.array([value for _, value in rows], pa.binary()),
            "key": pa.array([key for key, _ in rows], pa.binary()),
            **carried,
            HASH_COLUMN: np.frombuffer(b"".join(hashes), dtype=np.int64),
        }
    )
