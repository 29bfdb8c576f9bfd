"""How a drill went, as a message."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.providers.common.compat.notifier import BaseNotifier

from airflow_eos.notifications import DrillNotifier, drill_in_words
from airflow_eos.supervision.drill import DrillResult

FOUND = DrillResult("app-1", "process 7 on w was killed", "app-2", 12, 30.04)


class Sent(BaseNotifier):
    def __init__(self, text: str, box: list[str]) -> None:
        super().__init__()
        self.text, self.box = text, box

    def notify(self, context: Any) -> None:  # noqa: ARG002
        self.box.append(self.text)


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (FOUND.told(60), "The drill went well: 30.0 s from the kill to the next commit, 60 s"),
        (FOUND.told(20), "**Recovery took too long**: 30.0 s"),
        ({"ok": False, "why": "nobody is there"}, "**The drill failed:** nobody is there"),
        (None, "before it found anything"),
    ],
)
def test_it_says_what_was_found(report, expected):
    box: list[str] = []
    notifier = DrillNotifier(lambda text: Sent(text, box), report=json.dumps(report))
    notifier.notify({})
    assert expected in box[0]
    assert box == [drill_in_words(report)]
