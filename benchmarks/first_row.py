"""What a new user waits for, by the clock: installing, a first row, a row after a kill.

Installed is the wheel with ``cli`` and ``spark``, into an empty environment, by ``uv`` with the
cache that this machine has: what a download or pyspark's build takes there is not in it. In that
environment ``airflow-eos try`` runs; its first row is the first that a ``read_committed`` reader
has, after the app was killed in the middle of its first batch. Then the app that ``airflow-eos
new`` writes is run by ``SparkStreamingOperator``, as the docs set it, while rows come in; its
driver is killed, and the clock runs until readers have a row that was written after that.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from airflow_eos.checkpoint import CheckpointStore, read_heartbeat, request_drain
from airflow_eos.commands.new import Kind, make_project
from airflow_eos.local import spark_jars
from benchmarks.plot import Chart
from benchmarks.report import ROOT, Result, Table
from benchmarks.stage import Stage, refuse, staged

_ROUNDS = 3
_NAME = "clicks"
_RECOVERED = "Recovered, with the app still dead."
_EXACT = "lost 0, duplicated 0"
_EVERY_S = 0.2
_WAIT_S = 900.0
"""No figure is given where a row takes longer."""
_GOALS_S = {"first_row": 180, "whole_try": None, "kill_to_next_row": 60, "install": None}
_LABELS = {
    "install": "`uv pip install 'airflow-provider-eos[cli,spark]'`, from uv's cache",
    "first_row": "`airflow-eos try`, to its first exactly-once row",
    "whole_try": "`airflow-eos try`, to the end",
    "kill_to_next_row": "driver killed, to the next new row that readers have",
}


def run(arguments: argparse.Namespace) -> Result:
    """See the module."""
    rounds = arguments.rounds or _ROUNDS
    seconds: dict[str, list[float]] = {}
    with staged() as stage:
        installed, seconds["install"] = _install(stage.folder)
        first, whole = _try(installed)
        seconds |= {"first_row": [first], "whole_try": [whole]}
        seconds["kill_to_next_row"] = _kills(stage, rounds)
    return _result(seconds, rounds)


def _install(folder: Path) -> tuple[Path, list[float]]:
    """The programs of an environment that has what a user's has, and how long it took."""
    dist, home = folder / "dist", folder / "installed"
    python = [sys.executable, "-m"]
    build = [*python, "hatchling", "build", "-t", "wheel", "-d", str(dist)]
    subprocess.run(build, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    [wheel] = dist.iterdir()
    began = time.monotonic()
    subprocess.run([*python, "uv", "venv", "-q", "--python", sys.executable, home], check=True)
    into = ["install", "-q", "--python", str(home)]
    install = [*python, "uv", "pip", *into, f"{wheel}[cli,spark]"]
    subprocess.run(install, check=True)
    return home / "bin", [time.monotonic() - began]


def _try(installed: Path) -> tuple[float, float]:
    """Seconds until readers have a row, and until every row is counted."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    began = time.monotonic()
    with subprocess.Popen(
        [installed / "airflow-eos", "try"],
        cwd=installed,
        env={**environment, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        at = said_at(process.stdout, (_RECOVERED, _EXACT), time.monotonic)
    refuse("airflow-eos try ended with", process.returncode, 0)
    return at[_RECOVERED] - began, at[_EXACT] - began


def said_at(
    lines: Iterable[str], words: Iterable[str], clock: Callable[[], float]
) -> dict[str, float]:
    """When a program said each of these first; no figure is given where it did not."""
    wanted, found = list(words), dict[str, float]()
    for line in lines:
        for word in wanted:
            if word in line:
                found.setdefault(word, clock())
    refuse("of what is said, it said", list(found), wanted)
    return found


def _kills(stage: Stage, rounds: int) -> list[float]:
    """Run the app by the operator, kill its driver again and again, and drain it."""
    project, found = stage.folder / _NAME, list[float]()
    make_project(_NAME, Kind.map, project)
    output = [stage.topic(_NAME), stage.topic(f"{_NAME}.out")][1]
    checkpoint = stage.folder / "checkpoint"
    store = CheckpointStore.open(checkpoint)
    with (
        _reader(stage, output) as reader,
        _written(stage) as written,
        (stage.folder / "log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-m", __name__, str(project), str(checkpoint)],
            cwd=ROOT,
            env=stage.airflow(),
            stdout=log,
            stderr=log,
        ) as task,
    ):
        try:
            _await_newer(reader, 0)
            for number in range(rounds):
                beat = read_heartbeat(store)
                assert beat is not None
                began, newest = time.monotonic(), written[-1]
                os.kill(beat.pid, signal.SIGKILL)
                _await_newer(reader, newest)
                found.append(time.monotonic() - began)
                print(f"kill {number + 1}: {found[-1]:.1f} s", flush=True)
            request_drain(store, requested_by="benchmark", reason="done")
            task.wait(_WAIT_S)
        except BaseException:
            task.terminate()  # which ends the app as well
            shutil.copy(stage.folder / "log", "/dev/stderr")
            raise
    refuse("the task ended with", task.returncode, 0)
    return found


@contextmanager
def _written(stage: Stage) -> Iterator[list[int]]:
    """Numbers of the rows of the input, one more every 0.2 s."""
    producer, over, written = (
        Producer({"bootstrap.servers": stage.bootstrap}),
        threading.Event(),
        [0],
    )

    def write() -> None:
        while not over.wait(_EVERY_S):
            row = json.dumps({"page": "/a", "n": written[-1] + 1})
            producer.produce(_NAME, value=row, key=str(written[-1] % 7))
            producer.flush()
            written.append(written[-1] + 1)

    thread = threading.Thread(target=write, name="rows")
    thread.start()
    try:
        yield written
    finally:
        over.set()
        thread.join()


@contextmanager
def _reader(stage: Stage, topic: str) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": stage.bootstrap,
            "group.id": "first-row",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    partitions = consumer.list_topics(topic, 30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
    try:
        yield consumer
    finally:
        consumer.close()


def _await_newer(reader: Consumer, than: int) -> None:
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        message = reader.poll(0.2)
        if message is None or message.error() is not None:
            continue
        if json.loads(message.value() or b"{}").get("n", 0) > than:
            return
    raise SystemExit(f"No row came within {_WAIT_S:.0f} s. No figure is given.")


def _result(seconds: dict[str, list[float]], rounds: int) -> Result:
    medians = {what: statistics.median(seconds[what]) for what in _LABELS}
    rows = [
        (label, f"{medians[what]:.1f}", str(_GOALS_S[what] or "-"), str(len(seconds[what])))
        for what, label in _LABELS.items()
    ]
    title = "What a new user waits for"
    return Result(
        name="first_row",
        settings={"kills": rounds, "a row every": f"{_EVERY_S} s"},
        raw=seconds,
        ratios={},
        charts=[Chart(title, "s", {what: {"p50": s} for what, s in medians.items()})],
        tables=[Table(title, ("what", "p50, s", "asked, at most", "times"), rows)],
    )


def _run_task(project: str, checkpoint: str) -> None:
    """What Airflow's task does with the operator of a DAG."""
    import airflow.sdk  # noqa: F401 - what a task's process has

    from airflow_eos.operators import SparkStreamingOperator

    told = {"dag_id": _NAME, "task_id": "run", "run_id": "first-row", "map_index": -1}
    context: Any = {"ti": SimpleNamespace(**told)}
    SparkStreamingOperator(
        task_id="run",
        application=str(Path(project) / "spark_apps" / f"{_NAME}.py"),
        application_args=["--input-topic", _NAME, "--output-topic", f"{_NAME}.out"],
        checkpoint_location=checkpoint,
        transactional_id_prefix=_NAME,
        jars=",".join(map(str, spark_jars())),
        conf={"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"},
        deferrable=False,
    ).execute(context)


if __name__ == "__main__":
    _run_task(*sys.argv[1:])
