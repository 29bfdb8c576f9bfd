"""What a Python worker of Spark does once before it writes."""

from __future__ import annotations

import subprocess
import sys

_LOOK = """
import ctypes, gc
import pyarrow as pa
from airflow_eos.sinks.worker import settle_in
settle_in()
frozen = gc.get_freeze_count()
kept = [[] for _ in range(1000)]
settle_in()
glibc = hasattr(ctypes.CDLL(None), "mallopt")
once = gc.get_freeze_count() == frozen
print(frozen > 10_000, once, pa.default_memory_pool().backend_name, glibc)
"""


def test_a_worker_settles_in_once_and_garbage_collection_leaves_its_modules_alone():
    """In a process of its own: what it sets is the whole process's."""
    done = subprocess.run(
        [sys.executable, "-c", _LOOK], capture_output=True, text=True, check=True, timeout=60
    )
    frozen, once, pool, glibc = done.stdout.split()
    assert frozen == "True"
    assert once == "True", "what a failed batch left must stay collectable"
    assert (pool == "system") is (glibc == "True")
