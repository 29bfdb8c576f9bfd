"""A function fits a screen, and no file of the tests is a paragraph that was given a door."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT = 60
SHORT = {
    "cluster/copy_app.py": "an app that is submitted",
    "cluster/dags/stream.py": "a DAG that Airflow parses",
    "integration/commands/copying.py": "an app of a user",
    "integration/files/formed.py": "an app that is started",
    "integration/of_a_user/clicks.py": "an app of a user",
    "integration/rehearsal/copying.py": "an app of a user",
    "support/by_asset.py": "two rooms need it, and share nothing else",
    "support/clocks.py": "many rooms need it, and it needs none of them",
    "support/example.py": "a program",
    "support/kinds/theirs.py": "the tests' side of shelf.py, which is a user's and knows no test",
    "support/told.py": "Airflow's triggerer imports it, and ought to import no more",
}
"""Files of the tests with fewer than 30 lines, beside ``conftest.py`` and ``__init__.py``."""
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


def test_a_short_file_of_the_tests_has_a_reason():
    tests = ROOT / "tests"
    files = (
        file for file in tests.rglob("*.py") if file.name not in {"conftest.py", "__init__.py"}
    )
    short = {
        file.relative_to(tests).as_posix()
        for file in files
        if len(file.read_text(encoding="utf-8").splitlines()) < 30
    }
    assert short == set(SHORT)
