"""Runs the small Java programs of ``java/`` with Kafka's own client."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from airflow_eos.local import broker_jars
from airflow_eos.local.jars import java_program, logging_jars

_SOURCES = Path(__file__).parent / "java"


def java(program: str, *arguments: str, timeout_s: float = 600.0) -> Any:
    """Run ``java/<program>.java``; return its last line of output, decoded from JSON."""
    command = [
        java_program(),
        "-Xms1g",
        "-Xmx2g",
        "-XX:+UseParallelGC",
        "-cp",
        os.pathsep.join([str(_compiled()), _class_path()]),
        program,
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{program} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


@cache
def _class_path() -> str:
    return os.pathsep.join(str(jar) for jar in (*broker_jars(), *logging_jars()))


@cache
def _compiled() -> Path:
    # javac is only in a JDK: a JRE that can run Spark may lack it.
    target = Path(mkdtemp(prefix="airflow-eos-bench-java-"))
    atexit.register(shutil.rmtree, target, ignore_errors=True)
    sources = [str(path) for path in sorted(_SOURCES.glob("*.java"))]
    subprocess.run(
        ["javac", "-cp", _class_path(), "-d", str(target), *sources], check=True, timeout=120
    )
    return target
