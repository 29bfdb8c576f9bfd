"""A driver's authority and a query's tasks, where no Spark plans."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec

from airflow_eos.core.checkpoint import CheckpointStore, Decision, DecisionLog, OffsetLog, take_term
from airflow_eos.core.delivery.batch import Authority
from airflow_eos.core.delivery.port import TaskReport
from airflow_eos.core.protocol.decision import DEFAULT_PARTICIPANT

OFFSETS = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":7}\n{"in":{"0":1}}'


class ListOfNotes:
    """See :class:`airflow_eos.core.delivery.batch.ExternalFencing`."""

    def __init__(self) -> None:
        self.noted: list[Decision] = []

    def note(self, decision: Decision, _owner: Any) -> None:
        self.noted.append(decision)


def authority_of(store: CheckpointStore, decisions: DecisionLog, notes: Any = None) -> Authority:
    """Take the next term; a batch is planned when it is first begun, as Spark does just before."""

    def evaluated_at(batch_id: int) -> int:
        if store.get(f"offsets/{batch_id}") is None:
            store.put(f"offsets/{batch_id}", OFFSETS.encode())
        return 7

    return Authority(
        take_term(store, taken_by="test"),
        OffsetLog(store, decisions),
        notes or ListOfNotes(),
        evaluated_at=evaluated_at,
    )


# --- planned --------------------------------------------------------------------------------------
# The tasks of a streaming query, without Spark: what ``InPlanSink`` asks of its DataFrame.


class OneParticipant:
    """What a stand-in for a sink of one participant says of itself; rows are what they are."""

    names = (DEFAULT_PARTICIPANT,)

    def part(self, name: str) -> Any:
        assert name in self.names
        return self

    def rows(self, df: Any) -> Any:
        return df

    def streamed(self, df: Any) -> Any:
        return df


class LazyTasks:
    """They run when somebody collects their reports; the report of a ``lost`` one never comes."""

    def __init__(
        self, run: Callable[[], Sequence[TaskReport]], *, lost: Collection[int] = ()
    ) -> None:
        self._run = run
        self._lost = lost
        self._ran = 0

    def collect(self) -> list[Any]:
        reports = self._run()
        self._ran = len({report.task for report in reports})
        return [
            SimpleNamespace(report=msgspec.json.encode(report))
            for report in reports
            if report.task not in self._lost
        ]

    @property
    def _jdf(self) -> Any:
        """Spark's side of it: the plan, its RDD, how many partitions that has."""
        rdd = SimpleNamespace(getNumPartitions=lambda: self._ran)
        node = SimpleNamespace(nodeName=lambda: "MapInArrow")
        execution = SimpleNamespace(toRdd=lambda: rdd, analyzed=lambda: node)
        return SimpleNamespace(queryExecution=lambda: execution)

    def persist(self, _level: Any) -> LazyTasks:
        return self

    def unpersist(self) -> None: ...
