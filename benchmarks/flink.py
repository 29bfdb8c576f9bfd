"""Runs Flink's own exactly-once sink, in a Python environment that is fetched when first needed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import venv
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from airflow_eos.local import jars
from airflow_eos.local.jars import Bundle, Jar, java_program

VERSION = "2.3.0"
CONNECTOR = "5.0.0-2.2"
_BUNDLE = Bundle(
    f"flink-kafka-{CONNECTOR}",
    (
        Jar(
            "org.apache.flink",
            "flink-sql-connector-kafka",
            CONNECTOR,
            10_666_527,
            "5605c691d11a501382c383fecba37a7a552467da5ab7ba904ef5d6f3d62c5616",
        ),
    ),
)
_JOB = Path(__file__).parent / "flink_job.py"


def start(
    *,
    job: Path = _JOB,
    heap: str = "2g",
    java: str = "",
    log: IO[str] | int = subprocess.PIPE,
    **settings: Any,
) -> subprocess.Popen[str]:
    """Start a job in a process group of its own; see ``flink_job.py`` for the settings."""
    (connector,) = jars.ensure(_BUNDLE)
    environment = {
        **os.environ,
        "JAVA_HOME": str(Path(java_program()).resolve().parents[1]),
        "JVM_ARGS": f"-Xms{heap} -Xmx{heap} {java}",
        "PYTHONWARNINGS": "ignore",
    }
    return subprocess.Popen(
        [str(_python()), str(job), json.dumps({"connector": str(connector), **settings})],
        env=environment,
        stdout=log,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(**settings: Any) -> None:
    """Run a bounded job to its end."""
    process = start(bounded=True, **settings)
    try:
        output, _ = process.communicate(timeout=900)
        if process.returncode != 0:
            raise SystemExit(f"Flink failed:\n{output[-4000:]}")
    finally:
        stop(process)


def stop(process: subprocess.Popen[str]) -> None:
    """End the job, and the JVM that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


def _python() -> Path:
    """Return the Python of Flink's environment, which the first call makes (about 700 MB)."""
    folder = jars.cache_folder() / "flink" / VERSION
    python = folder / "bin" / "python"
    ready = folder / ".ready"
    if not ready.exists():
        print(f"fetching Flink {VERSION} into the cache folder, once", flush=True)
        venv.create(folder, clear=True, with_pip=True)
        package = f"apache-flink=={VERSION}"
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", package], check=True)
        ready.touch()
    return python
