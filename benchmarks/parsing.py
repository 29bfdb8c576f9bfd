"""CPU to parse the example DAGs, compared with importing ``airflow.sdk`` alone.

Airflow parses every DAG file again and again, each time in a new process.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.plot import Chart
from benchmarks.report import ROOT, Result, Table, median_ratio

_ROUNDS = 5
_SDK = "import airflow.sdk"
_DAGS = """
import importlib.util, pathlib, sys
for path in sorted(pathlib.Path("dags").glob("*.py")):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
"""


def run(arguments: argparse.Namespace) -> Result:
    """Measure parsing and import in turns, so that load on the machine falls on both."""
    rounds = arguments.rounds or _ROUNDS
    seconds: dict[str, list[float]] = {"airflow.sdk": [], "all example DAGs": []}
    with tempfile.TemporaryDirectory() as home:
        _cpu_seconds(_DAGS, home)  # warm-up: compiles, and writes Airflow's configuration
        for _ in range(rounds):
            seconds["airflow.sdk"].append(_cpu_seconds(_SDK, home))
            seconds["all example DAGs"].append(_cpu_seconds(_DAGS, home))
    ratio = median_ratio(seconds["all example DAGs"], seconds["airflow.sdk"])
    rows = [(what, f"{min(found):.2f}", f"{max(found):.2f}") for what, found in seconds.items()]
    return Result(
        name="parsing",
        settings={"rounds": rounds, "files": len(list((ROOT / "dags").glob("*.py")))},
        raw=seconds,
        ratios={"parse_all_example_dags_to_import_airflow_sdk": ratio},
        charts=[Chart("Parsing", "CPU s", {w: {"least": min(s)} for w, s in seconds.items()})],
        tables=[Table("CPU seconds of a new process", ("", "least", "most"), rows)],
    )


def _cpu_seconds(code: str, home: str) -> float:
    environment = {
        **os.environ,
        "AIRFLOW_HOME": home,
        "PYTHONPATH": str(ROOT),
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=Path(ROOT),
        check=True,
        capture_output=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
