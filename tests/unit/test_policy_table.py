"""Each setting of ``CheckpointPolicy`` has its line in the page of tests, and its tests."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

from airflow_eos.delivery import policy as restarts
from airflow_eos.sinks import CheckpointPolicy

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "tests/integration/policy/README.md").read_text(encoding="utf-8")
TABLE = PAGE[PAGE.index("| setting | tried by |") :].split("\n\n")[0].splitlines()[2:]
ROWS = dict(line.strip("|").strip().split(" | ") for line in TABLE)
STRATEGIES = {
    name
    for name, each in vars(restarts).items()
    if isinstance(each, type) and hasattr(each, "delay")
}
"""Whoever adds a strategy adds its line."""


def setting(row: str) -> str:
    """``restart`` of ``restart: FixedDelay``."""
    return re.sub("`", "", row).partition(":")[0]


def test_each_field_has_its_line_and_no_line_is_of_a_field_that_is_gone():
    told = {setting(row) for row in ROWS if row.startswith("`")}
    assert told == {each.name for each in fields(CheckpointPolicy)}


def test_each_restart_strategy_has_its_line():
    told = {row.rpartition(" ")[2].strip("`") for row in ROWS if row.startswith("`restart`")}
    assert told == STRATEGIES - {"RestartStrategy"}


def test_both_forms_of_cancellation_are_answered():
    ends = [row for row in ROWS if "after cancellation" in row]
    assert {row.partition(" ")[0] for row in ends} == {"retained", "removed"}
    assert "refused" in ROWS["removed after cancellation"]


@pytest.mark.parametrize("row", [row for row in ROWS if not row.startswith("removed")])
def test_each_line_names_tests_on_a_running_stream_that_use_the_setting(row):
    named = re.findall(r"`(tests/integration/[^`]+)::([^`]+)`", ROWS[row])
    assert named
    for path, name in named:
        text = (ROOT / path).read_text(encoding="utf-8")
        found = [
            node
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef) and node.name == name
        ]
        assert len(found) == 1, (path, name)
        if row.startswith("`restart`"):
            assert row.rpartition(" ")[2].strip("`") in text
        elif row.startswith("`"):
            assert f"{setting(row)}=" in text
