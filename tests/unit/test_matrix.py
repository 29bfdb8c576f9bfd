"""The logic of ``make matrix``, with programs that stand for uv and for the Pythons."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "matrix"
PYTHON = """#!/bin/sh
case "$2" in
    *executable*) echo "$0" ;;
    *python_version*) echo "{version}.1" ;;
    *) echo "what: $*" >&2; exit 9 ;;
esac
"""
UV = """#!/bin/sh
# A venv's python stands for pytest: it fails where the test says so.
case "$1 $2" in
    "--version "*) echo uv ;;
    "venv --quiet")
        mkdir -p "$5/bin"
        printf '#!/bin/sh\\necho "3 passed in 0.1s"\\nexit %s\\n' "$FAILS" >"$5/bin/python"
        chmod +x "$5/bin/python" ;;
    "pip compile")
        for each; do case "$each" in *newest.in) cat "$each" >>"$HOME/newest" ;; esac; done
        while [ $# -gt 1 ]; do
            [ "$1" = --output-file ] && printf \
                'apache-airflow==3.1.0 ; x  # (pyproject.toml)\\napache-airflow-core==9\\n%s\\n' \\
                'pyspark==4.0.0  # via -r lowest.in' >"$2"
            shift
        done ;;
    "pip install") exit "$INSTALL" ;;
esac
"""


@pytest.fixture
def matrix(tmp_path):
    """Run it where these Pythons are there; its exit status, what it said, the table."""
    here = tmp_path / "bin"
    here.mkdir()
    result = tmp_path / "RESULT.md"

    def program(name: str, text: str) -> None:
        (here / name).write_text(text)
        (here / name).chmod(0o755)

    def run(
        *pythons: str, fails: int = 0, install: int = 0, may_lack: str = ""
    ) -> tuple[int, str, str]:
        program("uv", UV)
        for version in pythons:
            program(f"python{version}", PYTHON.format(version=version))
        for version in {"3.11", "3.12", "3.13"} - set(pythons):
            program(f"python{version}", "#!/bin/sh\nexit 127\n")  # hides one of this machine
        done = subprocess.run(
            [str(SCRIPT)],
            env={
                "PATH": f"{here}{os.pathsep}{os.environ['PATH']}",
                "HOME": str(tmp_path),
                "EOS_MATRIX_RESULT": str(result),
                "EOS_MATRIX_MAY_LACK": may_lack,
                "FAILS": str(fails),
                "INSTALL": str(install),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr, result.read_text()

    return run


def rows(table: str) -> list[list[str]]:
    lines = [line for line in table.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_all_that_there_is_passes_and_is_written_down_with_its_versions(matrix):
    status, said, table = matrix("3.11", "3.12", "3.13")
    assert status == 0, said
    assert rows(table) == [
        ["lowest", "3.11.1", "3.1.0", "4.0.0", "3 passed in 0.1s"],
        ["newest-3.11", "3.11.1", "3.1.0", "4.0.0", "3 passed in 0.1s"],
        ["newest-3.12", "3.12.1", "3.1.0", "4.0.0", "3 passed in 0.1s"],
        ["newest-3.13", "3.13.1", "3.1.0", "4.0.0", "3 passed in 0.1s"],
    ]
    assert "`make matrix` wrote this on 2" in table


def test_the_newest_rows_have_no_older_airflow_than_the_lock(matrix, tmp_path):
    matrix("3.11", "3.12", "3.13")
    lock = tomllib.loads((SCRIPT.parents[1] / "uv.lock").read_text())
    [airflow] = [each["version"] for each in lock["package"] if each["name"] == "apache-airflow"]
    assert (tmp_path / "newest").read_text().split() == [f"apache-airflow>={airflow}"] * 3


def test_a_python_that_is_missing_is_not_run_and_no_success(matrix):
    status, said, table = matrix("3.11", "3.12")
    assert status == 2
    assert "not run: newest-3.13" in said
    assert rows(table)[-1][0::4] == ["newest-3.13", "not run: no python3.13 on PATH"]


def test_one_that_may_lack_is_not_run_and_said_so_all_the_same(matrix):
    status, _, table = matrix("3.11", "3.12", may_lack="3.13")
    assert status == 0
    assert "not run" in rows(table)[-1][-1]
    status, *_ = matrix("3.11", may_lack="3.13")
    assert status == 2, "3.12 may not"


def test_what_fails_is_said_after_all_have_been_tried(matrix):
    status, said, table = matrix("3.11", "3.12", "3.13", fails=1)
    assert status == 1
    assert "failed on lowest newest-3.11 newest-3.12 newest-3.13" in said
    assert all(row[-1].startswith("failed: ") for row in rows(table))


def test_an_environment_that_cannot_be_made_is_a_failure_and_stops_no_other(matrix):
    status, _, table = matrix("3.11", "3.12", "3.13", install=1)
    assert status == 1
    assert [row[-1] for row in rows(table)] == ["failed: its environment could not be made"] * 4
