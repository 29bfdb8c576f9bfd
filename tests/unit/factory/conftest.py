"""A run of a DAG whose tasks have answered already."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest


@dataclass
class Run:
    """What the tasks of a run have answered, and how they stand."""

    dag_id: ClassVar[str] = "orders_upgrade"
    run_id: ClassVar[str] = "r1"

    answers: dict[str, Any] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)

    def xcom_pull(self, *, task_ids: str, key: str = "") -> Any:
        return self.answers.get(key or task_ids)

    def xcom_push(self, *, key: str, value: Any) -> None:
        self.answers[key] = value

    def get_task_states(self, _dag_id: str, *, task_ids: list[str], run_ids: list[str]) -> Any:
        return {run: {t: s for t, s in self.states.items() if t in task_ids} for run in run_ids}


@pytest.fixture
def ti() -> Run:
    return Run()
