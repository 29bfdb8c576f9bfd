"""What Airflow reads about the provider, checked by Airflow's own schema and by importing it."""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
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
    assert seen == [
        ["airflow-eos", "plan", "--checkpoint", "/ck"],
        ["airflow-eos", *of_an_app],
    ]


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
