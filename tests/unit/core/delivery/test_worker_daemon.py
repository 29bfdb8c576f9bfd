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


# What a worker does is Spark's own; here it draws two random bytes, and two more after Spark has
# collected its garbage, as it does between two tasks.
WORKER = """
import numpy
drawn = []
def main(infile, outfile):
    drawn.append(outfile.write(numpy.random.bytes(2)))
    outfile.flush()
    if len(drawn) > 1:
        infile.read(1)
"""


@pytest.fixture
def workers(tmp_path):
    """Two workers that the daemon forks, by what each has drawn.

    It is started as Spark starts it: the zip before all else.
    """
    (tmp_path / "pyspark_worker_of_test.py").write_text(WORKER, encoding="utf-8")
    home = Path(pyspark.__file__).parent
    zips = [home / "python/lib/pyspark.zip", *(home / "python/lib").glob("py4j-*.zip")]
    secret = b"secret"
    with subprocess.Popen(
        [sys.executable, "-m", "airflow_eos.core.delivery.worker_daemon", "pyspark_worker_of_test"],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*map(str, zips), str(ROOT), str(tmp_path)]),
            "SPARK_REUSE_WORKER": "1",
            "PYTHON_WORKER_FACTORY_SECRET": secret.decode(),
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as daemon:
        try:
            [port] = struct.unpack("!i", daemon.stdout.read(4))
            with ExitStack() as connections:
                found: dict[bytes, psutil.Process] = {}
                for _ in range(2):
                    asked = socket.create_connection(("127.0.0.1", port))
                    connections.enter_context(asked)
                    asked.sendall(struct.pack("!i", len(secret)) + secret)
                    said = asked.recv(14, socket.MSG_WAITALL)
                    [pid], drawn = struct.unpack("!i", said[:4]), said[10:]
                    found[drawn] = psutil.Process(pid)
                yield found
        finally:
            daemon.terminate()


def test_a_forked_worker_has_loaded_what_every_task_imports(workers):
    for worker in workers.values():
        assert any("libarrow." in each.path for each in worker.memory_maps())


def test_no_two_workers_draw_the_same_random_numbers(workers):
    assert len(workers) == 2


def test_a_worker_that_has_looked_for_garbage_shares_what_the_daemon_has_loaded(workers):
    for worker in workers.values():
        found = worker.memory_full_info()
        assert found.uss < found.rss / 4
