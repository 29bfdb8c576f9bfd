"""``make test`` and ``make test ROOM=…``: which tests of the project they run."""

from __future__ import annotations

import subprocess
import tomllib

import pytest

from tests.suite import EXPRESSION, LEFT, ROOT, files_of

DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]


@pytest.fixture(scope="module")
def of_postgres() -> set[str]:
    return set(files_of("kinds/postgres"))


@pytest.mark.parametrize(
    "file",
    [
        "tests/integration/postgres/test_participant.py",  # imports it
        "tests/unit/spark_apps/test_app.py",  # imports it through the door of the sinks
        "tests/integration/kinds/test_kinds.py",  # through what helps the tests
        "tests/unit/kinds/test_databases.py",  # by its name in a text
    ],
)
def test_a_room_has_the_tests_that_import_it_by_whatever_way(of_postgres, file):
    assert file in of_postgres


def test_a_room_has_the_tests_of_the_rooms_above_and_no_others(of_postgres):
    assert "tests/unit/ops/supervision/test_run.py" in files_of("core/checkpoint/heartbeat.py")
    assert "tests/integration/lake/test_delta.py" not in of_postgres
    assert "tests/unit/ops/page/test_app.py" not in of_postgres


def test_a_room_that_is_not_there_is_an_error_and_never_the_whole_suite():
    with pytest.raises(SystemExit, match="airflow_eos has no room kinds/oracle"):
        files_of("kinds/oracle")
    asked = ["make", "-n", "-o", "setup", "test", "ROOM=kinds/postgres"]
    told = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "python -m tests.suite kinds/postgres) || exit" in told


def test_what_make_test_leaves_out_are_marks_and_each_has_a_command():
    declared = {mark.partition(":")[0] for mark in DECLARED["markers"]}
    assert set(LEFT) <= declared
    makefile = (ROOT / "Makefile").read_text()
    assert [mark for mark in LEFT if f"\n{mark}: " not in makefile] == []
    assert all(f"not {mark}" in EXPRESSION for mark in LEFT)
