"""What ``airflow-eos package --environment`` builds: the same bytes, and nothing of here in it."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

import pytest

from airflow_eos.ops.packaging import build_environment

pytestmark = [pytest.mark.cluster]

# What a task loads: the driver's half needs Spark's Python besides, which Spark brings along.
MODULES = (
    "airflow_eos.core.delivery.task, airflow_eos.arrow.producer.writer, hdfs_native, ssl, sqlite3"
)
PROGRAM = f"""
import sys
import {MODULES}
print(*sys.path, sep="\\n")
mapped = {{line[line.index("/"):].strip() for line in open("/proc/self/maps") if "/" in line}}
print(*mapped, sep="\\n")
"""


def test_the_same_files_give_the_same_bytes(environment: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    again = build_environment(
        tmp_path / "again.tar.gz",
        extras=("hdfs",),
        also=("pandas",),
        progress=lambda done, total: told.append((done, total)),
    )
    assert again.path.read_bytes() == environment.read_bytes()
    assert again.packed == environment.stat().st_size
    assert told[-1] == (again.unpacked, again.unpacked)
    assert [file.name for file in tmp_path.iterdir()] == ["again.tar.gz"], "a draft was left"


def test_it_runs_where_it_was_unpacked_and_loads_nothing_from_where_it_was_built(
    environment: Path, tmp_path: Path
) -> None:
    with tarfile.open(environment) as archive:
        archive.extractall(tmp_path, filter="tar")
    ran = subprocess.run(
        [tmp_path / "bin" / "python", "-c", PROGRAM],
        env={"PATH": "/usr/bin:/bin", "PYTHONHOME": "/nowhere"},
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    loaded = {line for line in ran.stdout.splitlines() if line.startswith("/")}
    assert str(tmp_path / "lib/python3.11/site-packages") in loaded
    systems = ("/usr/lib/", "/lib/", "/lib64/", "/etc/")
    foreign = {f for f in loaded if not f.startswith((str(tmp_path), *systems))}
    assert not {file for file in foreign if file.startswith("/")}, foreign
