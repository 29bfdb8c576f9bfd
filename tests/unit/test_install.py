"""What an installation needs: nothing for people on executors, an Airflow that is new enough."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]

# Stands in for an environment without some packages: the finder is asked before all others.
WITHOUT = """
import sys
from importlib.abc import MetaPathFinder

class NotInstalled(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, NotInstalled())
"""


def run(program: str, *args: str, absent: tuple[str, ...] = ()):
    return subprocess.run(
        [sys.executable, "-c", WITHOUT.format(absent=absent) + program, *args],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~\[; ]", each)[0] for each in requirements}


def pinned(requirements: list[str], name: str) -> str:
    return next(each.partition("==")[2] for each in requirements if each.startswith(f"{name}=="))


def test_executors_and_recovery_need_nothing_that_is_made_for_people():
    absent = (*names(EXTRAS["cli"]), "airflow")
    program = """
import importlib, pkgutil
for room in ("checkpoint", "kafka", "recovery", "sinks"):
    package = importlib.import_module(f"airflow_eos.{room}")
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if module.name != "airflow_eos.recovery.tables":  # draws what people see
            importlib.import_module(module.name)
"""
    done = run(program, absent=absent)

    assert done.returncode == 0, done.stderr


def test_nothing_made_for_people_is_a_base_dependency():
    assert not names(PROJECT["dependencies"]) & names(EXTRAS["cli"])
    assert "airflow-provider-eos[cli]" in EXTRAS["airflow"], "task logs show tables too"


@pytest.mark.parametrize("lacking", sorted(names(EXTRAS["cli"])))
def test_the_command_line_says_in_one_line_what_to_install(lacking):
    program = f"""
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == {lacking!r} else find_spec(name)
from airflow_eos.__main__ import main
main()
"""
    done = run(program, "--help")

    assert done.returncode == 2
    assert re.fullmatch(rf"airflow-eos: {lacking} .*'airflow-provider-eos\[cli\]'\n", done.stderr)


def test_airflow_and_spark_installed_together_bring_one_version_of_pyspark():
    assert pinned(EXTRAS["spark"], "pyspark") == pinned(EXTRAS["spark"], "pyspark-client")


def test_the_floor_of_airflow_is_the_declared_one():
    from airflow_eos.airflow_floor import AIRFLOW_FLOOR

    [declared] = [each for each in EXTRAS["airflow"] if each.startswith("apache-airflow>=")]
    assert AIRFLOW_FLOOR.startswith(declared.removeprefix("apache-airflow>=").partition(",")[0])


@pytest.mark.parametrize(
    "module",
    ["get_provider_info", "hooks.kafka", "operators", "sensors", "triggers.progress"],
)
def test_an_airflow_that_is_too_old_is_refused_in_one_sentence(module, tmp_path):
    # An Airflow of which nothing but the version can be read: the look at it comes first.
    installed = tmp_path / "apache_airflow_core-3.0.6.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: apache-airflow-core\nVersion: 3.0.6\n"
    )
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import airflow_eos.{module}"
    done = run(program, absent=("airflow",))

    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("RuntimeError: airflow-provider-eos needs Apache Airflow 3.1.0 or later")
    assert "found 3.0.6" in last


@pytest.mark.parametrize("first", ["get_provider_info", "operators", "sensors"])
def test_the_provider_may_be_imported_before_airflow(first, tmp_path):
    # Airflow's own start looks for providers, where its home is new, and finds this one half there.
    program = f"""
import os
os.environ["AIRFLOW_HOME"] = {str(tmp_path)!r}
import airflow_eos.{first}
from airflow.providers_manager import ProvidersManager
assert "airflow-provider-eos" in ProvidersManager().providers
"""
    done = run(program)

    assert done.returncode == 0, done.stderr


def test_the_package_itself_needs_no_airflow():
    assert run("import airflow_eos", absent=("airflow",)).returncode == 0
