"""Describes the machine and the versions with which a benchmark ran."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from airflow_eos.local.jars import KAFKA_VERSION, java_program
from benchmarks.cpu import CpuMeter

_PACKAGES = ("pyspark", "pyarrow", "numpy", "confluent-kafka", "kafka-python", "lz4", "crc32c")


@contextmanager
def environment() -> Iterator[dict[str, str]]:
    """Return machine, versions and date around a benchmark, for people to judge a figure by.

    At the end also the CPU that other programs used: a figure taken beside them is a guess.
    """
    found = _machine()
    start, busy = time.monotonic(), _busy_s()
    with CpuMeter() as own:
        yield found
    others_s = max(_busy_s() - busy - own.total(), 0)
    found["others used"] = f"{others_s / (time.monotonic() - start):.2f} cores on average"


def _machine() -> dict[str, str]:
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _git("rev-parse", "--short", "HEAD"),
        "cores": str(len(os.sched_getaffinity(0))),
        "processor": _processor(),
        "memory": f"{_memory_gib():.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "load before": f"{os.getloadavg()[0]:.2f}",
        "python": platform.python_version(),
        "java": _java_version(),
        "kafka": f"{KAFKA_VERSION}, one embedded broker on the same machine",
        **versions,
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _memory_gib() -> float:
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)


def _java_version() -> str:
    answer = subprocess.run(
        [java_program(), "-version"], capture_output=True, text=True, check=True
    )
    return answer.stderr.splitlines()[0].split('"')[1]


def _git(*arguments: str) -> str:
    answer = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "unknown"


def _busy_s() -> float:
    """Return the CPU seconds of the whole machine that were not idle."""
    fields = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()[1:]
    user, nice, system, _idle, _wait, irq, soft, steal = (int(field) for field in fields[:8])
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")
