"""Just enough of a DataFrame for the batch driver: rows cut into tasks."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from airflow_eos.core.protocol.promise import combined
from tests.model.broker import Rows


def fingerprint(rows: Sequence[str]) -> str:
    return combined(hashlib.blake2b(row.encode(), digest_size=16).hexdigest() for row in rows)


@dataclass(frozen=True)
class Cut:
    """How one driver's Spark deals the rows of a batch out to tasks.

    ``turn`` moves the partitions to other task numbers; ``width`` cuts all rows anew into that
    many tasks, as a changed parallelism does. ``reach`` is how many units it takes into a batch.
    """

    turn: int = 0
    width: int | None = None
    reach: int = 1

    def of(self, batch: Sequence[Rows]) -> list[Rows]:
        if self.width is None:
            at = self.turn % len(batch) if batch else 0
            return [*batch[at:], *batch[:at]]
        rows = [row for task in batch for row in task]
        return [tuple(rows[start :: self.width]) for start in range(self.width)]


class Frame:
    """A batch, lazily evaluated: ``evaluations`` counts what a stateful query would suffer."""

    schema = SimpleNamespace(fields=())
    sparkSession = None  # noqa: N815 - Spark's name

    def __init__(self, tasks: Sequence[Rows], source: Frame | None = None) -> None:
        self.tasks = list(tasks)
        self.evaluations = 0
        self._source = source
        self._kept = False
        self.fails: Callable[[], None] = lambda: None

    def evaluate(self) -> list[Rows]:
        self.fails()
        if self._source is not None:
            self._source.evaluate()
        elif not (self._kept and self.evaluations):
            self.evaluations += 1
        return self.tasks

    def persist(self, _level: Any) -> Frame:
        self._kept = True
        return self

    def unpersist(self) -> None:
        self._kept = False

    def count(self) -> int:
        return sum(map(len, self.evaluate()))

    def select(self, *_columns: Any) -> Frame:
        return self

    def exceptAll(self, other: Frame) -> Frame:  # noqa: N802 - Spark's name
        """The multiset difference, cut into two tasks as a shuffle would."""
        ours = Counter(row for task in self.tasks for row in task)
        left = sorted((ours - Counter(row for task in other.tasks for row in task)).elements())
        return Frame([tuple(left[::2]), tuple(left[1::2])], source=self)
