"""The process that forks Spark's Python workers, started with less: ``python -m`` this module.

Spark puts ``pyspark.zip`` before the installed package that it belongs to, and Python compiles what
comes from a zip anew in each process: half a second of CPU before the first row. What the tasks of
every sink import is loaded here, once, and not again in each worker, and shared by them all: what
is here before a fork is left out of each worker's search for garbage, which would copy all that it
looks at. All else is Spark's own.
"""

from __future__ import annotations

import gc
import importlib
import os
import runpy
import sys
from contextlib import suppress
from pathlib import Path

_ZIP = Path("python/lib/pyspark.zip")
_OF_EVERY_TASK = (
    *("pyspark.worker", "pyarrow", "numpy", "msgspec"),
    "airflow_eos.core.delivery.task",
)


def without_zip(path: list[str]) -> list[str]:
    """Return ``path`` without ``pyspark.zip`` where the package that it was made of is on it."""
    zips = [each for each in path if Path(each).name == _ZIP.name]
    rest = [each for each in path if each not in zips]
    installed = [folder / _ZIP for each in rest if (folder := Path(each, "pyspark")).is_dir()]
    return rest if installed and {Path(each) for each in zips} <= {installed[0]} else path


def fork_workers(*modules: str) -> None:
    """Do what Spark's daemon does, with what every task imports, and ``modules``, loaded before."""
    sys.path[:] = without_zip(sys.path)
    for name in (*_OF_EVERY_TASK, *modules):
        with suppress(ModuleNotFoundError):  # the first task says what is missing
            importlib.import_module(name)
    if (arrow := sys.modules.get("pyarrow")) is not None:
        arrow.scalar(0)  # with its first value it imports pandas, where that is installed
    if (random := sys.modules.get("numpy.random")) is not None:  # pandas did: each draws its own
        os.register_at_fork(after_in_child=random.seed)
    gc.freeze()
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    fork_workers()
