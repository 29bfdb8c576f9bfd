"""What Airflow reads about the provider, checked by Airflow's own schema and by importing it."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import airflow
import jsonschema  # type: ignore[import-untyped]
import pytest

from airflow_eos.get_provider_info import get_provider_info

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
