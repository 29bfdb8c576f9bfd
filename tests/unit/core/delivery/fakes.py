"""A sink and a broker small enough to see through, for tests of the driver's steps.

They hold no protocol knowledge: a transaction is open until somebody ends it, and the first end
stands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from airflow_eos.core.checkpoint import Decision
from airflow_eos.core.delivery.port import TaskReport
from airflow_eos.core.protocol.decision import (
    DEFAULT_PARTICIPANT,
    OpenWork,
    Outcome,
    PreparedWork,
    WorkIdentity,
)
from airflow_eos.core.protocol.promise import OperatorRuling, Promise, combined
from tests.support.authority import LazyTasks, OneParticipant
from tests.support.pipelines import kafka_member

Rows = tuple[str, ...]


def fingerprint(rows: Sequence[str]) -> str:
    return combined(
        f"{hash(row) & (1 << 64) - 1:016x}{hash(row + '/') & (1 << 64) - 1:016x}" for row in rows
    )


def id_of(identity: WorkIdentity) -> str:
    """The transactional id, without the producer id and epoch."""
    return identity.key.rsplit("-", 2)[0]


class FakeFrame:
    """Stands for a DataFrame: the rows of each task."""

    def __init__(self, *tasks: Sequence[str]) -> None:
        self.tasks = [tuple(task) for task in tasks]
        self.evaluations = 0

    def persist(self, _level: Any) -> FakeFrame:
        return self

    def unpersist(self) -> None: ...


class FakeBroker:
    """Work by identity; taking an id aborts what is open under it, as in Kafka."""

    def __init__(self, participant: str = DEFAULT_PARTICIPANT) -> None:
        self.participant = participant
        self.rows: dict[WorkIdentity, Rows] = {}
        self.state: dict[WorkIdentity, Outcome] = {}
        self.unknown: set[WorkIdentity] = set()
        self._epochs: dict[str, int] = {}

    def prepare(self, transactional_id: str, rows: Rows) -> PreparedWork:
        epoch = self._epochs[transactional_id] = self._epochs.get(transactional_id, -1) + 1
        for identity in self.open():
            if id_of(identity) == transactional_id:
                self.state[identity] = Outcome.ABORTED
        identity = WorkIdentity("fake", self.participant, f"{transactional_id}-7-{epoch}")
        self.rows[identity] = rows
        self.state[identity] = Outcome.OPEN
        return PreparedWork(
            kind=identity.kind,
            participant=identity.participant,
            key=identity.key,
            rows=len(rows),
            fingerprint=fingerprint(rows),
            opened_at_ms=time.time_ns() // 1_000_000,
            timeout_ms=60_000,
            detail={},
        )

    def end(self, identity: WorkIdentity, outcome: Outcome) -> None:
        if self.state.get(identity) is Outcome.OPEN:
            self.state[identity] = outcome

    def open(self) -> list[WorkIdentity]:
        return [i for i, state in self.state.items() if state is Outcome.OPEN]

    def visible(self) -> list[str]:
        return sorted(
            row
            for identity, state in self.state.items()
            if state is Outcome.COMMITTED
            for row in self.rows[identity]
        )


class FakeSink(OneParticipant):
    """Prepares what a FakeFrame holds; ``before_return`` runs once all tasks have prepared."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.before_return: Callable[[], None] = lambda: None
        self.attempts: dict[int, int] = {}

    def tasks(self, rows: Any, *, only: Any = None, transactional: bool = True) -> Any:
        assert transactional
        assert only is None
        return LazyTasks(lambda: self.prepare(rows))

    def delivered(self, spark: Any, works: Sequence[PreparedWork]) -> Any:
        raise NotImplementedError("rows are compared with a real Spark, in tests/integration")

    def prepare(self, rows: Any, *, only: Collection[int] | None = None) -> list[TaskReport]:
        rows.evaluations += 1
        reports = []
        for task, content in enumerate(rows.tasks):
            attempt = self.attempts.get(task, 0)
            prepared = None
            if content and (only is None or task in only):
                prepared = self.broker.prepare(f"etl-{task}-{attempt}", content)
            participant = self.broker.participant
            content_of = (len(content), fingerprint(content))
            reports.append(TaskReport(task, *content_of, prepared, participant))
        self.before_return()
        return reports


class FakeParticipant:
    """Over the broker that everybody shares; it remembers no owner."""

    members = (kafka_member(),)

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker

    def check(self, works: Sequence[PreparedWork]) -> None: ...

    def commit(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        for work in works:
            self.broker.end(work.identity, Outcome.COMMITTED)
        return self.outcome(works)

    def abort(self, works: Collection[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        was_open = {identity: identity in self.broker.open() for identity in works}
        for identity in works:
            self.broker.end(identity, Outcome.ABORTED)
        return was_open

    def abandon(self, works: Collection[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        return self.abort(works)

    def outcome(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        return {
            work.identity: Outcome.UNKNOWN
            if work.identity in self.broker.unknown
            else self.broker.state[work.identity]
            for work in works
        }

    def open(self, *, except_known: Collection[WorkIdentity] = ()) -> tuple[OpenWork, ...]:
        # As Kafka lists them: without the epoch.
        known = {id_of(identity) for identity in except_known}
        return tuple(
            OpenWork(each.kind, each.participant, each.key, 0, 60_000)
            for each in self.broker.open()
            if id_of(each) not in known
        )

    def claim(self, owner: Any) -> None: ...

    def ownership(self, _asking: Any) -> tuple[Any, ...]:
        return ()

    def require_settled(self, promise: Promise, said: OperatorRuling) -> None: ...

    def note(self, decision: Decision, owner: Any) -> None: ...

    def close(self) -> None: ...
