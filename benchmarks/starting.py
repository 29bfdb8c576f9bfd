"""Time from an app's start to the first row that readers have, beside ``spark-submit`` alone.

The app copies a topic, with Spark's own sink or with ours. It is started by ``spark-submit``, and
by Airflow's ``SparkSubmitOperator`` or our ``SparkStreamingOperator`` in a process that has
imported Airflow, as a task's process has before it reads its DAG. The clock runs from the start
until a ``read_committed`` reader has a row.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, BinaryIO

from confluent_kafka import Consumer, TopicPartition

from airflow_eos.local import spark_jars
from airflow_eos.sinks.source import tuned_spark_conf
from benchmarks import rows
from benchmarks.cpu import CpuMeter
from benchmarks.plot import Chart
from benchmarks.report import ROOT, Result, Table, median_ratio
from benchmarks.stage import Stage, refuse, staged
from benchmarks.standby import archived

if TYPE_CHECKING:
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

    from airflow_eos.operators import SparkStreamingOperator

_PARTITIONS = 4
_ROWS = 1000
_ROUNDS = 5
_FIRST_ROW_S = 180
READY = b"ready\n"
_APP = Path(__file__).parent / "starting_app.py"
_LABELS = {
    "alone": "spark-submit, Spark's own sink, at least once",
    "submitted": "spark-submit, ours, exactly once",
    "archived": "spark-submit, ours, exactly once, with a class archive",
    "airflow": "SparkSubmitOperator, Spark's own sink, at least once",
    "operator": "SparkStreamingOperator, ours, exactly once",
}
_TASKS = ("airflow", "operator")
_COMPARED = {
    "submitted_over_spark_submit_alone": ("submitted", "alone"),
    "archived_over_spark_submit_alone": ("archived", "alone"),
    "operator_over_spark_submit_operator": ("operator", "airflow"),
    "operator_over_spark_submit_of_the_same": ("operator", "submitted"),
    "operator_over_spark_submit_alone": ("operator", "alone"),
}
_CONF = {**tuned_spark_conf(), "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}


def run(arguments: argparse.Namespace) -> Result:
    """Start the app in all ways, in turns and alternating order."""
    rounds = arguments.rounds or _ROUNDS
    ways = arguments.only.split(",") if arguments.only else list(_LABELS)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    cpu: dict[str, list[float]] = {way: [] for way in ways}
    with staged() as stage:
        stage.topic("input", _PARTITIONS)
        rows.fill(stage.bootstrap, "input", _ROWS)
        _first_row_s(stage, "alone", "warm")  # loads jars and Python's files into the page cache
        for number in range(rounds):
            for way in ways if number % 2 == 0 else ways[::-1]:
                found = _first_row_s(stage, way, f"{way}-{number}")
                seconds[way].append(found[0])
                cpu[way].append(found[1])
                print(f"{_LABELS[way]}: {found[0]:.1f} s, CPU {found[1]:.1f} s", flush=True)
    return _result(seconds, cpu, rounds)


def _first_row_s(stage: Stage, way: str, name: str) -> tuple[float, float]:
    """Return the seconds until a reader has a row, and the CPU of Java and Python until then."""
    output, checkpoint = stage.topic(name, _PARTITIONS), stage.folder / name / "checkpoint"
    checkpoint.mkdir(parents=True)
    environment = stage.airflow()
    is_task = way in _TASKS
    conf = archived(stage) if way == "archived" else _CONF
    command = [sys.executable, "-m", __name__] if is_task else _submit(conf)
    told = [way, str(checkpoint), stage.bootstrap, output]
    with (
        _reader(stage, output) as reader,
        (checkpoint.parent / "log").open("wb") as log,
        CpuMeter() as meter,
        subprocess.Popen(
            [*command, *told],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if is_task else log,
            stderr=log,
        ) as process,
    ):
        assert process.stdin is not None
        drain = await_ready(process, log) if is_task else None  # after its imports
        began, at = time.monotonic(), 1000 * time.time()
        process.stdin.write(b"go\n" if is_task else b"")
        process.stdin.close()
        found = _await_row(reader, began)
        process.wait()  # each app reads the whole topic, and ends
        if drain is not None:
            drain.join()
    refuse(f"{name} ended with", process.returncode, 0)
    refuse(f"{name} wrote", stage.read(output)["rows"], _ROWS)
    cpu = meter.between(at, at + 1000 * found)
    return found, cpu["Java"] + cpu["Python"]


def await_ready(process: subprocess.Popen[bytes], log: BinaryIO) -> threading.Thread:
    """Read a process's output until a line that is just ``ready``; a thread copies the rest.

    Earlier lines do not count, and a pipe that is not read stops a process after 64 KiB.
    """
    assert process.stdout is not None
    for line in process.stdout:
        log.write(line)
        if line == READY:
            break
    else:
        raise SystemExit(f"The process ended without {READY!r}. No figure is given.")
    drain = threading.Thread(
        target=shutil.copyfileobj, args=(process.stdout, log), name="log", daemon=True
    )
    drain.start()
    return drain


def _submit(settings: Mapping[str, str]) -> list[str]:
    submit = str(Path(sys.executable).with_name("spark-submit"))
    conf = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    jars = ",".join(str(jar) for jar in spark_jars())
    return [submit, "--master", "local[2]", "--jars", jars, *conf, str(_APP)]


@contextmanager
def _reader(stage: Stage, topic: str) -> Iterator[Consumer]:
    """Open a ``read_committed`` consumer of all partitions, before the clock starts."""
    consumer = Consumer(
        {
            "bootstrap.servers": stage.bootstrap,
            "group.id": "starting",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 20,
        }
    )
    consumer.assign([TopicPartition(topic, each, 0) for each in range(_PARTITIONS)])
    consumer.poll(1.0)
    try:
        yield consumer
    finally:
        consumer.close()


def _await_row(reader: Consumer, began: float) -> float:
    while time.monotonic() - began < _FIRST_ROW_S:
        message = reader.poll(0.5)
        if message is not None and message.error() is None:
            return time.monotonic() - began
    raise SystemExit(f"No row came within {_FIRST_ROW_S} s. No figure is given.")


def _result(seconds: dict[str, list[float]], cpu: dict[str, list[float]], rounds: int) -> Result:
    ratios = {
        f"first_row_{name}": median_ratio(seconds[way], seconds[other])
        for name, (way, other) in _COMPARED.items()
        if {way, other} <= seconds.keys()
    }
    medians = {way: statistics.median(found) for way, found in seconds.items()}
    table = [
        (
            _LABELS[way],
            *(f"{value:.1f}" for value in (medians[way], min(found), max(found))),
            f"{statistics.median(cpu[way]):.1f}",
        )
        for way, found in seconds.items()
    ]
    title = "From the start of an app to its first row that readers have"
    return Result(
        name="starting",
        settings={"rounds": rounds, "rows": _ROWS},
        raw={"seconds": seconds, "cpu": cpu},
        ratios=ratios,
        charts=[Chart(title, "s", {_LABELS[way]: {"p50": s} for way, s in medians.items()})],
        tables=[Table(title, ("start", "p50, s", "least", "most", "CPU, s"), table)],
    )


def _run_task(way: str, checkpoint: str, bootstrap: str, output: str) -> None:
    """Make the operator and execute it, as a task's process does, after a line on stdin."""
    import airflow.sdk  # noqa: F401 - what a task's process has

    sys.stdout.write(READY.decode())
    sys.stdout.flush()
    sys.stdin.readline()
    told = {"dag_id": "starting", "task_id": "start", "run_id": output, "map_index": -1}
    context: Any = {"ti": SimpleNamespace(**told)}
    jars = ",".join(str(jar) for jar in spark_jars())
    if way == "airflow":
        _spark_submit(["alone", checkpoint, bootstrap, output], jars).execute(context)
    else:
        _spark_streaming(checkpoint, output, jars).execute(context)


def _spark_submit(told: list[str], jars: str) -> SparkSubmitOperator:
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

    return SparkSubmitOperator(
        task_id="start", application=str(_APP), application_args=told, jars=jars, conf=_CONF
    )


def _spark_streaming(checkpoint: str, output: str, jars: str) -> SparkStreamingOperator:
    from airflow_eos.operators import SparkStreamingOperator

    return SparkStreamingOperator(
        task_id="start",
        application=str(_APP),
        application_args=["operator", "", "", output],
        checkpoint_location=checkpoint,
        transactional_id_prefix=output,
        jars=jars,
        conf=_CONF,
        deferrable=False,
        max_restarts=0,
    )


if __name__ == "__main__":
    _run_task(*sys.argv[1:])
