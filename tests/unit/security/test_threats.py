"""The table of threats in notes/threats.md names tests that are there, and leaves out nobody."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
WHO = (
    "producer of the input",
    "another pipeline of the cluster",
    "whoever may write the checkpoint",
    "whoever may write the data folder or the database",
    "author of another team's DAG",
    "reader of logs",
    "the network",
)


def rows() -> list[list[str]]:
    """Who, what he writes, what he gets, what stops him, and the tests."""
    page = (ROOT / "notes" / "threats.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def known_tests() -> set[str]:
    files = (ROOT / "tests").rglob("test_*.py")
    return {
        name
        for file in files
        for name in re.findall(
            r"^ *def (test_\w+)\(", file.read_text(encoding="utf-8"), re.MULTILINE
        )
    }


def test_everybody_who_can_write_something_is_in_the_table():
    named = [row[0] for row in rows() if row[0]]
    assert [who for who in WHO if not any(each.startswith(who) for each in named)] == []


def test_each_threat_has_tests_that_are_there_or_says_that_nobody_stops_it():
    there = known_tests()
    for row in rows():
        assert len(row) == 5, row
        named = re.findall(r"`(\w+)`", row[4])
        assert set(named) <= there, set(named) - there
        assert named or row[3].startswith("nobody"), row


@pytest.mark.parametrize("name", ["test_that_is_not_there", "known_tests"])
def test_a_name_that_is_none_of_a_test_is_noticed(name):
    assert name not in known_tests()
