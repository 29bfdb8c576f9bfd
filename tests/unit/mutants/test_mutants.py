"""The list of mutations stays in step with the product, and a trial is not easily satisfied."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.catalogue import ROOT, Mutant, UnsoundMutantError, read_catalogue
from tests.mutants.trial import Tree, Verdict
from tests.suite import LEFT

CATALOGUE = read_catalogue()
CODE = "def double(x):\n    return 2 * x\n"


@pytest.mark.parametrize("mutant", CATALOGUE, ids=lambda mutant: mutant.name)
def test_every_mutation_still_applies_and_names_tests_that_exist(mutant):
    changed = mutant.applied((ROOT / mutant.file).read_text(encoding="utf-8"))
    if mutant.file.endswith(".py"):
        compile(changed, mutant.file, "exec")
    named = [path.partition("::")[0] for path in mutant.paths]
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
    if mutant.names_a_unit_test:  # those of other tests are collected, below
        files = [file for path in named for file in (ROOT / path, *(ROOT / path).rglob("*.py"))]
        text = "".join(file.read_text(encoding="utf-8") for file in files if file.is_file())
        words = set(re.findall(r"\w+", mutant.keyword)) - {"and", "or", "not"}
        assert [word for word in words if word not in text] == []


def test_each_mutant_names_a_test_that_make_test_runs():
    asked = [sys.executable, "-m", "tests.mutants.found"]
    told = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True)
    assert told.returncode == 0, told.stdout[-2000:] + told.stderr
    found = json.loads(told.stdout.rpartition("\n")[2])
    elsewhere = {mutant.name for mutant in CATALOGUE if not mutant.names_a_unit_test}
    assert found.keys() == elsewhere
    assert [name for name, tests in found.items() if not tests] == []


def test_unit_tests_are_never_left_to_another_command():
    left = re.compile(rf"pytest\.mark\.({'|'.join(LEFT)})\b")
    files = (ROOT / "tests/unit").rglob("test_*.py")
    assert [file for file in files if left.search(file.read_text(encoding="utf-8"))] == []


WHOLE = ("tests/unit/", "tests/model/", "tests/chaos/test_checker.py")
"""Where all tests of a file together take seconds."""


def test_a_mutant_names_the_test_where_its_file_takes_long():
    whole = {
        mutant.name: path
        for mutant in CATALOGUE
        for path in mutant.paths
        if not ("::" in path or mutant.keyword or path.startswith(WHOLE))
    }
    assert whole == {}


def mutant(**changed: object) -> Mutant:
    given = {
        "name": "half",
        "breaks": "twice is twice",
        "file": "airflow_eos/twice.py",
        "old": "2 * x",
        "new": "1 * x",
        "tests": ("tests/test_twice.py",),
    }
    return Mutant(**(given | changed))  # type: ignore[arg-type]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A product of one function, and tests of it that are good, blind, broken, or not there."""
    source = tmp_path / "source"
    for folder in ("airflow_eos", "tests"):
        (source / folder).mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(source)], check=True)
    (source / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (source / "airflow_eos" / "twice.py").write_text(CODE)
    head = "import importlib.util as u, pathlib, pytest\n"
    head += "path = pathlib.Path(__file__).parents[1] / 'airflow_eos' / 'twice.py'\n"
    head += "spec = u.spec_from_file_location('twice', path)\n"
    head += "twice = u.module_from_spec(spec)\nspec.loader.exec_module(twice)\n"
    tests = {
        "twice": "def test_it():\n    assert twice.double(3) == 6\n",
        "blind": "def test_it():\n    assert twice.double(0) == 0\n",
        "red": "def test_it():\n    assert twice.double(3) == 7\n",
        "import": "assert twice.double(3) == 6\ndef test_it():\n    pass\n",
        "fixture": "@pytest.fixture\ndef six():\n    assert twice.double(3) == 6\n"
        "def test_it(six):\n    pass\n",
    }
    for name, test in tests.items():
        (source / "tests" / f"test_{name}.py").write_text(head + test)
    return Tree(source, tmp_path / "copy")


def test_a_mutant_that_a_test_notices_is_found_by_that_test(tree):
    trial = tree.try_out(mutant())
    assert (trial.verdict, trial.detail) == (Verdict.FOUND, "tests/test_twice.py::test_it")


def test_a_mutant_that_no_test_notices_survives(tree):
    trial = tree.try_out(mutant(tests=("tests/test_blind.py",)))
    assert (trial.verdict, trial.detail) == (Verdict.SURVIVED, "twice is twice")


def test_a_mutant_that_is_noticed_late_is_not_found(tree, monkeypatch):
    monkeypatch.setattr("tests.mutants.trial.FOUND_WITHIN_S", 0)
    late = tree.try_out(mutant())
    assert late.verdict is Verdict.LATE
    assert late.detail.endswith("tests/test_twice.py::test_it")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"tests": ("tests/test_red.py",)}, "without the mutation: pytest ends with 1"),
        ({"tests": ("tests/test_import.py",)}, "no test failed"),
        ({"tests": ("tests/test_fixture.py",)}, "no test failed"),
        ({"tests": ("tests/test_gone.py",)}, "without the mutation: pytest ends with 4"),
        ({"new": "2 * * x"}, "no test failed"),
        ({"old": "3 * x"}, "occurs 0 times"),
        ({"old": "x"}, "occurs 2 times"),
    ],
    ids=["red-before", "import", "fixture", "no-test", "no-python", "gone", "twice-there"],
)
def test_what_proves_nothing_does_not_count_as_found(tree, changed, says):
    trial = tree.try_out(mutant(**changed))
    assert trial.verdict is Verdict.UNSOUND
    assert says in trial.detail


def test_the_tree_is_as_it_was_after_every_trial(tree):
    for tests in ("tests/test_twice.py", "tests/test_import.py"):
        tree.try_out(mutant(tests=(tests,)))
    for folder in (tree.root, tree.folder):
        assert (folder / "airflow_eos" / "twice.py").read_text() == CODE


def test_an_entry_that_changes_nothing_is_refused():
    with pytest.raises(UnsoundMutantError):
        mutant(new="2 * x").applied(CODE)
