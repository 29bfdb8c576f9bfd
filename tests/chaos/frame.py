"""Just enough of a DataFrame, and of a query."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tests.chaos.spark_data import Row, StateStore
from tests.chaos.workers import WorkerPool

STATE_PARTITIONS = 3

Tasks = list[list[Row]]


class Frame:
    """A batch as tasks of rows, evaluated lazily: each evaluation is one that state suffers."""

    schema = SimpleNamespace(fields=())

    def __init__(self, pool: WorkerPool, evaluate: Callable[[], Tasks]) -> None:
        self.pool = pool
        self._evaluate = evaluate
        self._keeps = False
        self._kept: Tasks | None = None

    @property
    def sparkSession(self) -> WorkerPool:  # noqa: N802 - Spark's name
        return self.pool

    def tasks(self) -> Tasks:
        tasks = self._kept if self._kept is not None else self._evaluate()
        if self._keeps:
            self._kept = tasks
        return tasks

    def handed_out(self) -> Sequence[Iterable[Row]]:
        """What the workers get: the rows of each task."""
        return self.tasks()

    def persist(self, _level: Any) -> Frame:
        self._keeps = True
        return self

    def unpersist(self) -> None:
        self._keeps, self._kept = False, None

    def select(self, *_columns: Any) -> Frame:
        return self

    def count(self) -> int:
        """How many rows there are, by an evaluation of its own, as Spark's."""
        return sum(len(task) for task in self.tasks())


def undelivered(rows: Frame, delivered: Frame, *, tasks: int) -> Frame:
    """What ``airflow_eos.core.delivery.replay`` does with Spark: the order of each task is kept."""
    del tasks

    def difference() -> Tasks:
        seen = Counter(row for task in delivered.tasks() for row in task)
        left: Tasks = []
        for task in rows.tasks():
            left.append([])
            for row in task:
                if seen[row] > 0:
                    seen[row] -= 1
                else:
                    left[-1].append(row)
        return left

    return Frame(rows.pool, difference)


@dataclass(frozen=True)
class Query:
    """What the app does with a batch: copy rows, deal them to other tasks, or count by key.

    ``shuffle`` deals rows by value, ``keyed`` by key: then the rows of a key stay in order.

    ``turn`` moves the input's partitions to other task numbers, which a Spark may do at every
    start; ``width`` is the number of tasks after a shuffle, which a user may change.
    """

    kind: str
    width: int
    turn: int

    def tasks(self, batch: int, by_partition: Tasks, state: StateStore) -> Tasks:
        if self.kind == "map":
            at = self.turn % len(by_partition)
            return [*by_partition[at:], *by_partition[:at]]
        rows = [row for partition in by_partition for row in partition]
        if self.kind == "shuffle":
            return _dealt(rows, self.width, key_of=lambda row: row[1])
        if self.kind == "keyed":
            return _dealt(rows, self.width, key_of=lambda row: row[0])
        if self.kind == "count":
            counted = state.count(batch, rows)
            return _dealt(counted, STATE_PARTITIONS, key_of=lambda row: row[0])
        raise ValueError(self.kind)


def _dealt(rows: list[Row], width: int, *, key_of: Callable[[Row], bytes]) -> Tasks:
    tasks: Tasks = [[] for _ in range(width)]
    for row in rows:
        tasks[zlib.crc32(key_of(row)) % width].append(row)
    return tasks
