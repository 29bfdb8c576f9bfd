"""A function fits a screen, as CONTRIBUTING says; a file is as long as its subject."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT = 60
Function = ast.FunctionDef | ast.AsyncFunctionDef


def body_lines(function: Function) -> int:
    """From the first statement to the last: arguments and docstring are for who calls it."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def functions() -> dict[str, int]:
    """Lines of each function of the product, by file and name."""
    return {
        f"{path.relative_to(ROOT).as_posix()}:{node.name}": body_lines(node)
        for room in ("airflow_eos", "benchmarks", "dags", "spark_apps")
        for path in (ROOT / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, Function)
    }


def test_no_function_outgrows_a_screen():
    grown = {name: lines for name, lines in functions().items() if lines > LIMIT}
    assert not grown, f"split them, or leave something out: {grown}"


def test_a_function_that_is_too_long_is_seen():
    long = "\n".join(["def f():", '    """One.', "", '    Two."""', *["    pass"] * (LIMIT + 1)])
    [function] = ast.parse(long).body
    assert isinstance(function, Function)
    assert body_lines(function) == LIMIT + 1
