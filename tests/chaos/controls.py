"""Negative controls: one rule of the protocol broken on purpose, in the process that asks for it.

Each must make the checker find something, or the checker is blind. None touches the product.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_eos.core.checkpoint import DecisionLog
from airflow_eos.core.delivery import replay
from airflow_eos.core.protocol.decision import Outcome, PreparedWork
from airflow_eos.core.protocol.promise import Promise
from airflow_eos.core.recovery.facts import Facts
from airflow_eos.kafka.participant import KafkaParticipant
from airflow_eos.kafka.transactions.identity import transaction_of
from airflow_eos.kafka.transactions.ownership import PrefixLedger
from airflow_eos.kinds.files.participant import made
from airflow_eos.kinds.files.sink import FilesOfTask
from airflow_eos.kinds.postgres.sink import TransactionOfTask


def no_decision() -> None:
    """The decision step is skipped: nothing is written, nothing is ever found."""
    DecisionLog.record = lambda *_: True  # type: ignore[method-assign]
    DecisionLog.of_batch = lambda *_: ()  # type: ignore[method-assign]
    PrefixLedger.note = lambda *_: None  # type: ignore[method-assign]


def settle_not_idempotent() -> None:
    """Committing a second time is taken for "not committed" by whoever did not open it."""
    real = KafkaParticipant.commit

    def commit(self: KafkaParticipant, works: Any) -> Any:
        outcomes = real(self, works)
        ours: set[Any] = getattr(self, "opened", set())
        return {i: o if i in ours else Outcome.ABORTED for i, o in outcomes.items()}

    _remember_own_transactions()
    KafkaParticipant.commit = commit  # type: ignore[method-assign]


def _remember_own_transactions() -> None:
    from airflow_eos.core.delivery.batch import ExactlyOnceBatch

    real = ExactlyOnceBatch._decide

    def decide(self: Any, batch: int, attempt: int, works: Any) -> None:
        self._participant.opened = {work.identity for work in works}
        real(self, batch, attempt, works)

    ExactlyOnceBatch._decide = decide  # type: ignore[method-assign, assignment]


def recovery_aborts_decided() -> None:
    """Recovery does not look at the decisions and ends with abort whatever it finds open."""
    Facts.named = property(lambda _facts: ())  # type: ignore[assignment, method-assign]


def replay_unchecked() -> None:
    """A replay pairs tasks by their number and compares no content."""

    def by_number(tasks: Any, delivered: Any) -> list[int]:
        done = Counter(_task_of(work) for work in delivered)
        return [task.task for task in tasks if task.rows and not done[task.task]]

    replay.undelivered_tasks = by_number
    Promise.check_whole = lambda *_: None  # type: ignore[method-assign]
    Promise.check_replay = lambda *_: None  # type: ignore[method-assign]


def _task_of(work: PreparedWork) -> int:
    return int(transaction_of(work.identity).transactional_id.split("-")[-2])


def file_without_a_row() -> None:
    """A task's file lacks a row that the task was given and reports."""
    real = FilesOfTask.write

    def write(self: FilesOfTask, rows: Any) -> None:
        real(self, rows[1:])

    FilesOfTask.write = write  # type: ignore[method-assign]


def table_with_rows_twice() -> None:
    """A task sends its rows to PostgreSQL twice."""
    real = TransactionOfTask.write

    def write(self: TransactionOfTask, rows: Any) -> None:
        real(self, rows)
        real(self, rows)

    TransactionOfTask.write = write  # type: ignore[method-assign]


def published_when_prepared() -> None:
    """A file can be seen as soon as its task has ended."""
    real = FilesOfTask.prepare

    def prepare(self: Any, fingerprint: str) -> PreparedWork | None:
        work = real(self, fingerprint)
        if work is not None:
            made(Path(self._sink.folder), self._sink.name).commit([work])
        return work

    FilesOfTask.prepare = prepare  # type: ignore[method-assign]


CONTROLS: dict[str, Callable[[], None]] = {
    "no_decision": no_decision,
    "settle_not_idempotent": settle_not_idempotent,
    "recovery_aborts_decided": recovery_aborts_decided,
    "replay_unchecked": replay_unchecked,
    "file_without_a_row": file_without_a_row,
    "table_with_rows_twice": table_with_rows_twice,
    "published_when_prepared": published_when_prepared,
}
"""And ``read_uncommitted``, which is a setting of the readers."""


def break_rule(name: str) -> None:
    if name in CONTROLS:
        CONTROLS[name]()
