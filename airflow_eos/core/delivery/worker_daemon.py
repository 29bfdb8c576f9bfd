"""The process that forks Spark's Python workers, started with less: ``python -m`` this module.

Spark puts ``pyspark.zip`` before the installed package that it belongs to, and Python compiles what
comes from a zip anew in each process: half a second of CPU before the first row. What the tasks of
every sink import is loaded here, once, and not again in each worker. All else is Spark's own.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path

_ZIP = Path("python/lib/pyspark.zip")
_OF_EVERY_TASK = ("pyarrow", "numpy", "msgspec", "airflow_eos.core.delivery.task")


def without_zip(path: list[str]) -> list[str]:
    """Return ``path`` without ``pyspark.zip`` where the package that it was made of is on it."""
    zips = [each for each in path if Path(each).name == _ZIP.name]
    rest = [each for each in path if each not in zips]
    installed = [folder / _ZIP for each in rest if (folder := Path(each, "pyspark")).is_dir()]
    return rest if installed and {Path(each) for each in zips} <= {installed[0]} else path


if __name__ == "__main__":
    sys.path[:] = without_zip(sys.path)
    for name in _OF_EVERY_TASK:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
