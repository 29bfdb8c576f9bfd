"""The table of requests names tests that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "requests.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| [")]
NAMED = re.findall(r"`(tests/[^`]+)`", PAGE)


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
