"""The table of requests names tests that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "notes" / "requests.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| [")]
NAMED = re.findall(r"`(tests/[^`]+)`", PAGE)
ASKED = {
    *(f"airflow {n}" for n in (17479, 19752, 41212, 49900, 57416, 64205, 66437, 67168, 69586)),
    *("airflow 72128", *(f"spark-operator {n}" for n in (155, 858, 1581, 3040))),
    *("spark-k8s-operator 457", "spark-k8s-operator 646"),
    *("OpenLineage 3105", "OpenLineage 3398", "FLINK-39218", "FLINK-40626"),
}
"""Whoever reads another thread adds it here and in the table."""


def test_no_request_that_was_read_is_without_its_row():
    rows = [re.match(r"\| \[([^]]+)\]\(https://github\.com/\S+\) \|", row) for row in ROWS]
    asked = [found[1] for found in rows if found]
    assert len(asked) == len(set(asked)) == len(ROWS)
    assert set(asked) == ASKED


@pytest.mark.parametrize("row", [row for row in ROWS if "FLINK" not in row])
def test_the_thread_that_is_linked_is_the_one_that_is_named(row):
    named, number, linked = re.findall(r"\[(\S+) (\d+)\]\((\S+)\)", row)[0]
    assert re.fullmatch(rf"https://github\.com/\S+/{named}/(issues|pull)/{number}", linked)


@pytest.mark.parametrize("named", NAMED)
def test_each_test_that_is_named_exists(named):
    path, _, name = named.partition("::")
    assert (ROOT / path).exists()
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert not name or name in defined


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[3 : row.index("]")])
def test_each_request_has_its_thread_and_a_test(row):
    asked, *_, held = row.strip("|").split(" | ")
    assert re.search(r"\]\(https://github\.com/[^)]+/(issues|pull)/\d+\)", asked)
    assert "tests/" in held
