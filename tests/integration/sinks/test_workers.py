"""An app whose workers run another Python than its driver is refused in words, before a batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_eos.kafka.sink import TASK_MODULES
from tests.support.jvm import spark_submit_opts

JOB = Path(__file__).parent / "workers_job.py"
ROOT = Path(__file__).parents[3]
THIS = f"{sys.version_info.major}.{sys.version_info.minor}"
NOWHERE = "/no/such/python"


def environment(folder: Path, module: str, source: str) -> str:
    """The interpreter of a new environment that has this one module and nothing else."""
    base = getattr(sys, "_base_executable", sys.executable)
    subprocess.run([base, "-m", "venv", "--without-pip", str(folder)], check=True)
    [packages] = (folder / "lib").glob("python*/site-packages")
    (packages / f"{module}.py").write_text(source)
    return str(folder / "bin/python")


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> str:
    """What ``python3`` of PATH is where no environment is activated; its pyarrow is an old one."""
    folder = tmp_path_factory.mktemp("bare") / "env"
    return environment(folder, "pyarrow", "__version__ = '9.0.0'\n")


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> str:
    """This Python, started under another version: a machine need not have a second one."""
    folder = tmp_path_factory.mktemp("other") / "env"
    pretend = (
        "import collections, sys\n"
        "kind = collections.namedtuple('version', 'major minor micro releaselevel serial')\n"
        "sys.version_info = kind(3, 99, 0, 'final', 0)\n"
    )
    return environment(folder, "sitecustomize", pretend)


@pytest.fixture(scope="module")
def said(bare, other, tmp_path_factory) -> dict[str, str]:
    """What one real Spark says of each; the driver's own last."""
    pythons = [bare, NOWHERE, other, sys.executable]
    done = subprocess.run(
        [sys.executable, str(JOB), str(ROOT), *pythons],
        env={
            **os.environ,
            "PYTHONPATH": "",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SUBMIT_OPTS": spark_submit_opts(),
        },
        cwd=tmp_path_factory.mktemp("elsewhere"),  # a worker also finds what lies in its folder
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answers: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return answers


@pytest.mark.long
def test_a_python_without_our_packages_is_named_with_all_that_it_lacks(said, bare):
    lacks = sorted({"airflow_eos", *TASK_MODULES} - {"pyarrow"})
    assert said[bare].startswith(f"Spark's Python workers run {bare} ({THIS}.")
    assert f"which lacks {', '.join(lacks)} and has" in said[bare]
    assert "Set PYSPARK_PYTHON" in said[bare]
    assert f"this driver runs {sys.executable}." in said[bare]


def test_an_old_pyarrow_is_named_with_the_one_that_spark_needs(said, bare):
    assert "has no pyarrow that fits Spark (PyArrow >= " in said[bare]
    assert "9.0.0)." in said[bare]


def test_a_python_that_is_not_there_is_named(said):
    assert f"there is no program {NOWHERE} to run. Set PYSPARK_PYTHON" in said[NOWHERE]


def test_a_python_of_another_minor_version_is_named(said, other):
    assert f"run {other}, a Python 3.99, and the driver Python {THIS}: expected" in said[other]
    assert f"to a Python {THIS} that has" in said[other]


def test_no_refusal_is_a_trace(said):
    assert all("\n" not in text and len(text) < 700 for text in said.values())


def test_the_drivers_own_python_passes_and_its_workers_are_warm(said):
    assert said[sys.executable].startswith("fine, and warm")


def test_workers_on_the_drivers_machine_compile_no_pyspark_of_a_zip_anew(said):
    forked_by = "airflow_eos.kafka.worker_daemon with the installed pyspark"
    assert said[sys.executable] == f"fine, and warm: {forked_by}"


LOADED = """
import importlib, sys
before = set(sys.modules)
for module in sys.argv[1:]:
    importlib.import_module(module)
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""


def loaded_by(*modules):
    command = [sys.executable, "-c", LOADED, *modules]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


@pytest.mark.long
def test_every_package_that_a_task_imports_is_looked_for():
    loaded = loaded_by("airflow_eos.kafka.sink", "airflow_eos.arrow.producer.writer")
    declared = {"msgspec", "numpy", "pyarrow", "kafka", "crc32c", "lz4", "cramjam", "structlog"}
    declared |= {"obstore", "pendulum", "confluent_kafka", "platformdirs", "rich"}
    assert declared & loaded == set(TASK_MODULES)
