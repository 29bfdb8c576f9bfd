"""Each command of ``airflow-eos --help`` has a test that runs it as a process of its own.

A function that is called in a test's process has that process's session, environment and folder:
``repartition`` had a test, and never worked.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from airflow_eos.cli.app import app

ROOT = Path(__file__).parents[3]
HERE = "tests/integration/commands"
RUN_BY = {
    "try": "tests/integration/local/test_try.py",
    "demo": "tests/integration/test_demo.py",
    "broker": "tests/integration/local/test_broker_command.py",
    "new": f"{HERE}/test_each_command.py",
    "plan": f"{HERE}/test_each_command.py",
    "recover": f"{HERE}/test_each_command.py",
    "accept": f"{HERE}/test_each_command.py",
    "cut": f"{HERE}/test_each_command.py",
    "audit": f"{HERE}/test_each_command.py",
    "doctor": f"{HERE}/test_each_command.py",
    "status": f"{HERE}/test_each_command.py",
    "explain": "tests/unit/cli/test_explain.py",
    "ui": f"{HERE}/test_each_command.py",
    "disown": f"{HERE}/test_each_command.py",
    "blocked": f"{HERE}/test_each_command.py",
    "hanging": f"{HERE}/test_each_command.py",
    "foreign": f"{HERE}/test_each_command.py",
    "package": f"{HERE}/test_each_command.py",
    "repartition": f"{HERE}/test_repartition.py",
    "drain": f"{HERE}/test_drivers.py",
    "handover": f"{HERE}/test_drivers.py",
    "rehearse": f"{HERE}/test_drivers.py",
}
"""By command or group, the file whose tests run it; each command of a group is run there."""


def commands(group: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, each in group.commands.items():
        if hasattr(each, "commands"):
            yield from commands(each, (*before, name))
        else:
            yield (*before, name)


def words_given(file: str) -> set[str]:
    """The texts that calls and lists of a file are made of: the words of its command lines."""
    tree = ast.parse((ROOT / file).read_text())
    calls = [each.args for each in ast.walk(tree) if isinstance(each, ast.Call)]
    lists = [each.elts for each in ast.walk(tree) if isinstance(each, ast.List | ast.Tuple)]
    return {
        each.value
        for given in (*calls, *lists)
        for each in given
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    }


def test_each_command_is_run_to_its_end_by_a_test_in_a_process_of_its_own():
    known = list(commands(typer.main.get_command(app)))
    assert {each[0] for each in known} == RUN_BY.keys(), "a new command needs such a test"
    for each in known:
        assert each[-1] in words_given(RUN_BY[each[0]]), f"{each} is not run in {RUN_BY[each[0]]}"
