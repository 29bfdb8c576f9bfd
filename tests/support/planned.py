"""The tasks of a streaming query, without Spark: what ``PlannedSink`` asks of its DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec

from airflow_eos.sinks.protocol import TaskReport


class LazyTasks:
    """They run when somebody collects their reports."""

    def __init__(self, run: Callable[[], Sequence[TaskReport]]) -> None:
        self._run = run

    def collect(self) -> list[Any]:
        return [SimpleNamespace(report=msgspec.json.encode(report)) for report in self._run()]

    def persist(self, _level: Any) -> LazyTasks:
        return self

    def unpersist(self) -> None: ...
