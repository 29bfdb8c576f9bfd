"""A worker takes pyspark from the folder whose zip Spark names, and from no other."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pyspark
import pytest

from airflow_eos.core.delivery.worker_daemon import without_zip

ROOT = Path(__file__).parents[4]


@pytest.fixture
def installed(tmp_path):
    def make(name):
        lib = tmp_path / name / "pyspark/python/lib"
        lib.mkdir(parents=True)
        return str(tmp_path / name), str(lib / "pyspark.zip")

    return make


def test_the_zip_of_the_installed_pyspark_is_left_out(installed):
    site, zipped = installed("site")
    assert without_zip(["", zipped, "py4j.zip", site]) == ["", "py4j.zip", site]


def test_the_zip_of_another_spark_stays(installed):
    site, _ = installed("site")
    _, zipped = installed("spark")
    path = ["", zipped, site]
    assert without_zip(path) == path


def test_the_zip_stays_where_another_pyspark_would_be_found_before_its_own(installed):
    first, _ = installed("first")
    site, zipped = installed("site")
    path = ["", zipped, first, site]
    assert without_zip(path) == path


def test_the_zip_stays_where_nothing_is_installed(tmp_path):
    path = ["", str(tmp_path / "python/lib/pyspark.zip"), str(tmp_path)]
    assert without_zip(path) == path


@pytest.fixture
def workers():
    """Two workers that the daemon forks, started as Spark starts it: the zip before all else."""
    home = Path(pyspark.__file__).parent
    zips = [home / "python/lib/pyspark.zip", *(home / "python/lib").glob("py4j-*.zip")]
    secret = b"secret"
    with subprocess.Popen(
        [sys.executable, "-m", "airflow_eos.core.delivery.worker_daemon", "pyspark.worker"],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*map(str, zips), str(ROOT)]),
            "PYTHON_WORKER_FACTORY_SECRET": secret.decode(),
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as daemon:
        try:
            [port] = struct.unpack("!i", daemon.stdout.read(4))
            with ExitStack() as connections:
                pids: list[int] = []
                for _ in range(2):
                    asked = socket.create_connection(("127.0.0.1", port))
                    connections.enter_context(asked)
                    asked.sendall(struct.pack("!i", len(secret)) + secret)
                    pids += struct.unpack("!i", asked.recv(4, socket.MSG_WAITALL))
                yield [psutil.Process(pid) for pid in pids]
        finally:
            daemon.terminate()


def test_a_forked_worker_has_loaded_what_every_task_imports(workers):
    assert len({worker.pid for worker in workers}) == 2
    for worker in workers:
        assert any("libarrow." in each.path for each in worker.memory_maps())
