"""A sink and a broker small enough to see through, for tests of the driver's steps.

They hold no protocol knowledge: a transaction is open until somebody ends it, and the first end
stands.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from airflow_eos.sinks.fingerprint import combined
from airflow_eos.sinks.protocol import TaskReport
from airflow_eos.transactions import (
    OffsetRange,
    OpenTransaction,
    Outcome,
    PreparedTransaction,
    TransactionIdentity,
)
from tests.support.planned import LazyTasks

Rows = tuple[str, ...]


def fingerprint(rows: Sequence[str]) -> str:
    return combined(
        f"{hash(row) & (1 << 64) - 1:016x}{hash(row + '/') & (1 << 64) - 1:016x}" for row in rows
    )


class FakeFrame:
    """Stands for a DataFrame: the rows of each task."""

    def __init__(self, *tasks: Sequence[str]) -> None:
        self.tasks = [tuple(task) for task in tasks]
        self.evaluations = 0

    def persist(self, _level: Any) -> FakeFrame:
        return self

    def unpersist(self) -> None: ...


class FakeBroker:
    """Transactions by identity; taking an id aborts what is open under it."""

    def __init__(self) -> None:
        self.rows: dict[TransactionIdentity, Rows] = {}
        self.state: dict[TransactionIdentity, Outcome] = {}
        self.unknown: set[TransactionIdentity] = set()
        self._epochs: dict[str, int] = {}
        self._offsets = itertools.count()

    def prepare(self, transactional_id: str, rows: Rows) -> PreparedTransaction:
        epoch = self._epochs[transactional_id] = self._epochs.get(transactional_id, -1) + 1
        for identity in self.open():
            if identity.transactional_id == transactional_id:
                self.state[identity] = Outcome.ABORTED
        identity = TransactionIdentity(transactional_id, 7, epoch)
        self.rows[identity] = rows
        self.state[identity] = Outcome.OPEN
        offset = next(self._offsets)
        return PreparedTransaction(
            transactional_id=transactional_id,
            producer_id=7,
            producer_epoch=epoch,
            written=(OffsetRange("out", 0, offset, offset + len(rows) - 1),),
            rows=len(rows),
            fingerprint=fingerprint(rows),
            opened_at_ms=0,
            timeout_ms=60_000,
        )

    def end(self, identity: TransactionIdentity, outcome: Outcome) -> None:
        if self.state.get(identity) is Outcome.OPEN:
            self.state[identity] = outcome

    def open(self) -> list[TransactionIdentity]:
        return [i for i, state in self.state.items() if state is Outcome.OPEN]

    def visible(self) -> list[str]:
        return sorted(
            row
            for identity, state in self.state.items()
            if state is Outcome.COMMITTED
            for row in self.rows[identity]
        )


class FakeSink:
    """Prepares what a FakeFrame holds; ``before_return`` runs once all tasks have prepared."""

    transactional_id_prefix = "etl"

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.before_return: Callable[[], None] = lambda: None
        self.attempts: dict[int, int] = {}

    def rows(self, df: Any) -> Any:
        return df

    def streamed(self, df: Any) -> Any:
        return df

    def tasks(self, rows: Any, *, transactional: bool = True) -> Any:
        assert transactional
        return LazyTasks(lambda: self.prepare(rows))

    def prepare(self, rows: Any, *, only: Collection[int] | None = None) -> list[TaskReport]:
        rows.evaluations += 1
        reports = []
        for task, content in enumerate(rows.tasks):
            attempt = self.attempts.get(task, 0)
            prepared = None
            if content and (only is None or task in only):
                prepared = self.broker.prepare(f"etl-{task}-{attempt}", content)
            reports.append(TaskReport(task, len(content), fingerprint(content), prepared))
        self.before_return()
        return reports


class FakeCommitter:
    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker

    def commit(
        self, transactions: Sequence[PreparedTransaction]
    ) -> Mapping[TransactionIdentity, Outcome]:
        for transaction in transactions:
            self.broker.end(transaction.identity, Outcome.COMMITTED)
        return self.outcome(transactions)

    def abort(self, transactions: Collection[TransactionIdentity]) -> None:
        for identity in transactions:
            self.broker.end(identity, Outcome.ABORTED)

    def outcome(
        self, transactions: Sequence[PreparedTransaction]
    ) -> Mapping[TransactionIdentity, Outcome]:
        return {
            t.identity: Outcome.UNKNOWN
            if t.identity in self.broker.unknown
            else self.broker.state[t.identity]
            for t in transactions
        }

    def open_transactions(
        self, *, besides: Collection[TransactionIdentity] = ()
    ) -> tuple[OpenTransaction, ...]:
        # As Kafka lists them: without the epoch.
        known = {(i.transactional_id, i.producer_id) for i in besides}
        return tuple(
            OpenTransaction(i.transactional_id, i.producer_id, i.producer_epoch, 0, 60_000)
            for i in self.broker.open()
            if (i.transactional_id, i.producer_id) not in known
        )

    def delivered(self, spark: Any, transactions: Sequence[PreparedTransaction]) -> Any:
        raise NotImplementedError("rows are compared with a real Spark, in tests/integration")

    def close(self) -> None: ...
