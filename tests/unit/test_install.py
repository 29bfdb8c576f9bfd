"""What an installation needs, and what Airflow reads about the provider."""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import airflow
import jsonschema  # type: ignore[import-untyped]
import pytest
from airflow.sdk import Asset, BaseOperator
from packaging.version import Version

from airflow_eos import operators
from airflow_eos.get_provider_info import get_commands, get_provider_info
from airflow_eos.links import LINKS, RECOVERY_DAG
from airflow_eos.operators import SparkStreamingOperator

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
for room in ("core", "core.checkpoint", "kafka", "core.recovery", "sinks"):
    package = importlib.import_module(f"airflow_eos.{room}")
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if module.name != "airflow_eos.ops.plan_tables":  # draws what people see
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
    from airflow_eos.hooks import AIRFLOW_FLOOR

    [declared] = [each for each in EXTRAS["airflow"] if each.startswith("apache-airflow>=")]
    assert AIRFLOW_FLOOR.startswith(declared.removeprefix("apache-airflow>=").partition(",")[0])


@pytest.mark.parametrize(
    "module", ["get_provider_info", "hooks.kafka", "operators", "sensors", "triggers.progress"]
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


# --- What Airflow reads about the provider, checked by Airflow's own schema and by importing it ---


ROOT = Path(__file__).parents[2]
INFO = get_provider_info()
MODULES = [
    module
    for kind in ("hooks", "operators", "sensors", "triggers")
    for group in INFO[kind]
    for module in group["python-modules"]
]


def test_it_fits_airflows_own_schema():
    schema = Path(airflow.__file__).parent / "provider_info.schema.json"
    jsonschema.validate(INFO, json.loads(schema.read_text()))


def test_it_is_named_like_the_distribution():
    found = entry_points(group="apache_airflow_provider")
    ours = [each for each in found if each.value.startswith("airflow_eos.")]
    assert [each.load()() for each in ours] == [INFO]
    assert ours[0].dist.name == INFO["package-name"]


@pytest.mark.parametrize("module", MODULES)
def test_every_module_it_names_is_there(module):
    importlib.import_module(module)


@pytest.mark.parametrize("kind", ["hooks", "operators", "sensors", "triggers"])
def test_every_public_module_is_named(kind):
    """A module with a class for users is one with an Airflow base; the others are helpers."""
    named = {module for module in MODULES if module.startswith(f"airflow_eos.{kind}.")}
    public = importlib.import_module(f"airflow_eos.{kind}")
    for name in getattr(public, "__all__", []):
        assert getattr(public, name).__module__ in named


@pytest.mark.parametrize(
    "name",
    [*INFO["extra-links"], *INFO["notifications"], *INFO["cli"]],
    ids=lambda n: n.split(".")[-1],
)
def test_every_class_and_function_it_names_is_there(name):
    module, _, attribute = name.rpartition(".")
    assert callable(getattr(importlib.import_module(module), attribute))


def test_every_link_of_an_operator_is_named():
    """Airflow's page shows no link whose class no provider names."""
    for link in SparkStreamingOperator.operator_extra_links:
        assert f"{type(link).__module__}.{type(link).__qualname__}" in INFO["extra-links"]


def test_a_link_without_configuration_is_the_one_that_the_configuration_describes():
    options = INFO["config"]["airflow_eos"]["options"]
    used = {link.option: link.default for link in LINKS} | {"recovery_dag": RECOVERY_DAG}
    for option, default in used.items():
        described = options[option]["default"]
        assert described.replace("{{", "{").replace("}}", "}") == default


def test_no_option_is_newer_than_the_package():
    version = Version(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
    options = INFO["config"]["airflow_eos"]["options"]
    assert all(Version(option["version_added"]) <= version for option in options.values())


def test_each_guide_is_a_page():
    for guide in INFO["integrations"][0]["how-to-guide"]:
        assert (ROOT / guide.lstrip("/")).exists()


def test_airflow_eos_hands_everything_on_to_the_one_command_line(monkeypatch):
    seen: list[list[str]] = []
    monkeypatch.setattr("airflow_eos.__main__.main", lambda: seen.append(sys.argv))
    monkeypatch.setattr(sys, "argv", ["airflow"])
    [command] = get_commands()
    parser = argparse.ArgumentParser()
    for arg in command.args:
        arg.add_to_parser(parser)
    command.func(parser.parse_args(["plan", "--checkpoint", "/ck"]))
    of_an_app = ["rehearse", "/ck", "--app", "new.py", "--", "--input-topic", "orders"]
    command.func(parser.parse_args(["--", *of_an_app]))
    assert seen == [["airflow-eos", "plan", "--checkpoint", "/ck"], ["airflow-eos", *of_an_app]]


@pytest.mark.parametrize("name", operators.__all__)
def test_no_argument_hides_a_name_of_baseoperator(name, monkeypatch):
    """``dry_run`` is a method there: an attribute of that name would break ``airflow tasks``."""
    operator = getattr(operators, name)
    needed = {
        "application": "a.py",
        "asset": Asset("a"),
        "checkpoint_location": "/ck",
        "id_expression": "value.id",
        "input_topic": "i",
        "output_topic": "o",
        "task_id": "t",
    }
    taken = {name for base in operator.__mro__[:-1] for name in inspect.signature(base).parameters}
    known = set(dir(BaseOperator(task_id="b")))
    made = operator(**{k: v for k, v in needed.items() if k in taken or k == "task_id"})
    hidden = {k for k in vars(made).keys() & known if callable(getattr(BaseOperator, k, None))}
    assert not hidden


def test_parsing_a_dag_imports_nothing_heavy():
    """Airflow parses every DAG file again and again."""
    heavy = ["pyspark", "pyarrow", "confluent_kafka", "kafka", "obstore", "numpy", "pandas"]
    code = (
        "import sys, airflow_eos.operators, airflow_eos.sensors; "
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert answer.stdout.strip().splitlines()[-1] == "[]"
