"""Options for a JVM of Spark that lives for seconds: tests start it a hundred times.

Half of its start is loading classes. An archive of them (JEP 350) is made once a checkout by a
small streaming query, and mapped by every later start.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pyspark
from py4j.java_gateway import (  # type: ignore[import-untyped]
    GatewayParameters,
    JavaGateway,
    launch_gateway,
)

from airflow_eos.local.jars import java_program

# An app of a few seconds gains nothing from the optimising compiler.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
FOLDER = Path(__file__).parents[2] / "build" / "jvm"
QUERY = Path(__file__).with_name("query_for_classes.py")


@cache
def spark_submit_opts() -> str:
    """What to put into ``SPARK_SUBMIT_OPTS``; the first caller of a checkout waits half a minute.

    A JVM that does not like the archive, because it is another Java, goes on without it.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    java = Path(java_program()).resolve().parents[1].name
    archive = FOLDER / f"spark-{pyspark.__version__}-{java}.jsa"
    with (FOLDER / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _make(archive)
    return f"{SHORT_LIVED} -XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:cds*=off"


def _make(archive: Path) -> None:
    fresh = archive.with_suffix(".new")
    environment = os.environ | {
        "SPARK_SUBMIT_OPTS": f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={fresh} -Xlog:cds*=off",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    # The pipe is at its end when the JVM is, and that is when the archive is whole.
    made = subprocess.run(
        [sys.executable, str(QUERY)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1800,  # half a minute alone, ten on a machine that others use as well
    )
    assert made.returncode == 0, made.stdout
    assert fresh.exists(), made.stdout
    fresh.replace(archive)


@contextmanager
def java(options: str) -> Iterator[JavaGateway]:
    """A real Java behind py4j, as a driver's is."""
    [jar] = (Path(pyspark.__file__).parent / "jars").glob("py4j*.jar")
    port = launch_gateway(
        jarpath=str(jar),
        classpath=str(jar),
        javaopts=shlex.split(options),
        die_on_exit=True,
        java_path=java_program(),
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    try:
        yield gateway
    finally:
        gateway.shutdown()
