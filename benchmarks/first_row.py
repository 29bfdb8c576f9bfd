"""The times that a new user waits: for an install, a first row, a row after a kill.

The wheel is installed as the tutorial says, into an empty environment, by ``uv`` with this
machine's cache: the times of downloads and of pyspark's build are not included. In that
environment

- ``airflow-eos try`` runs; its first row is the first that a ``read_committed`` reader has, after
  the app was killed in the middle of its first batch;
- the commands of ``docs/tutorial.md`` make a pipeline and run it in ``airflow standalone``; its
  first row is the first that a ``read_committed`` reader has. Then worker and driver are killed
  together, with the setting of Airflow that ``docs/production.md`` advises.

``SparkStreamingOperator`` alone also runs the app that ``airflow-eos new`` writes; its driver is
killed. The time after a kill ends when readers have a row that was written after the kill.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from airflow_eos.cli.new import Kind, make_project
from airflow_eos.core.checkpoint import CheckpointStore, read_heartbeat, request_drain
from airflow_eos.local import spark_jars
from airflow_eos.local.broker import HOST, free_ports
from benchmarks.plot import Chart
from benchmarks.report import ROOT, Result, Table
from benchmarks.stage import Stage, refuse, staged
from demo.leftovers import end_every_process_with

_ROUNDS = 3
_NAME = "clicks"
_RECOVERED = "Recovered, with the app still dead."
_EXACT = "lost 0, duplicated 0"
_EVERY_S = 0.2
_WAIT_S = 900.0
"""Seconds to wait for a row; no figure is given where it takes longer."""
_GOALS_S = {"first_row": 180, "kill_to_next_row": 60, "airflow_first_row": 480, "airflow_kill": 90}
_LABELS = {
    "install": "`uv pip install 'airflow-provider-eos[airflow,spark,cli]'`, from uv's cache",
    "first_row": "`airflow-eos try`, to its first exactly-once row",
    "whole_try": "`airflow-eos try`, to the end",
    "kill_to_next_row": "driver killed, to the next new row that readers have",
    "airflow_ready": "the tutorial, from `airflow-eos new` until `airflow standalone` is ready",
    "airflow_first_row": "the same, to the first exactly-once row of the pipeline's own DAG",
    "airflow_kill": "worker and driver killed, to the next new row that readers have",
}
_WAYS = ("try", "operator", "airflow")


def run(arguments: argparse.Namespace) -> Result:
    """Measure the ways that ``--only`` names, else all."""
    rounds = arguments.rounds or _ROUNDS
    ways = arguments.only.split(",") if arguments.only else _WAYS
    refuse("unknown variants", sorted(set(ways) - set(_WAYS)), [])
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="airflow-eos-bench-", ignore_cleanup_errors=True) as at:
        folder = Path(at)
        installed, seconds["install"] = _install(folder)
        if "try" in ways:
            first, whole = _try(installed)
            seconds |= {"first_row": [first], "whole_try": [whole]}
        if "operator" in ways:
            with staged() as stage:
                seconds["kill_to_next_row"] = _kills(stage, rounds)
        if "airflow" in ways:
            seconds |= _in_airflow(folder, installed, rounds)
    return _result(seconds, rounds)


def _install(folder: Path) -> tuple[Path, list[float]]:
    """Install as a user does; return the folder of the programs, and the seconds it took."""
    dist, home = folder / "dist", folder / "installed"
    python = [sys.executable, "-m"]
    build = [*python, "hatchling", "build", "-t", "wheel", "-d", str(dist)]
    subprocess.run(build, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    [wheel] = dist.iterdir()
    began = time.monotonic()
    subprocess.run([*python, "uv", "venv", "-q", "--python", sys.executable, home], check=True)
    into = ["install", "-q", "--python", str(home)]
    install = [*python, "uv", "pip", *into, f"{wheel}[airflow,spark,cli]"]
    subprocess.run(install, check=True)
    return home / "bin", [time.monotonic() - began]


def _try(installed: Path) -> tuple[float, float]:
    """Run ``airflow-eos try``; return the seconds to a first row, and until all are counted."""
    began = time.monotonic()
    with subprocess.Popen(
        [installed / "airflow-eos", "try"],
        cwd=installed,
        env=_users(installed),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        at = said_at(process.stdout, (_RECOVERED, _EXACT), time.monotonic)
    refuse("airflow-eos try ended with", process.returncode, 0)
    return at[_RECOVERED] - began, at[_EXACT] - began


def _users(installed: Path) -> dict[str, str]:
    """Return the variables of a user who has activated the installed environment."""
    path = os.pathsep.join([str(installed), os.environ["PATH"]])
    ours = {"PYTHONPATH", "PYSPARK_PYTHON", "AIRFLOW_HOME"}
    theirs = {name: value for name, value in os.environ.items() if name not in ours}
    return {**theirs, "PATH": path, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}


def said_at(
    lines: Iterable[str], words: Iterable[str], clock: Callable[[], float]
) -> dict[str, float]:
    """Return when a program first printed each word; no figure is given where it did not."""
    wanted, found = list(words), dict[str, float]()
    for line in lines:
        for word in wanted:
            if word in line:
                found.setdefault(word, clock())
    refuse("of what is said, it said", list(found), wanted)
    return found


def _kills(stage: Stage, rounds: int) -> list[float]:
    """Run the app by the operator, kill its driver in each round, and return the times."""
    project, found = stage.folder / _NAME, list[float]()
    make_project(_NAME, Kind.map, project)
    output = [stage.topic(_NAME), stage.topic(f"{_NAME}.out")][1]
    checkpoint = stage.folder / "checkpoint"
    store = CheckpointStore.open(checkpoint)
    with (
        _reader(stage.bootstrap, output) as reader,
        _written(stage.bootstrap) as written,
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
            task.terminate()  # the task ends the app as well
            shutil.copy(stage.folder / "log", "/dev/stderr")
            raise
    refuse("the task ended with", task.returncode, 0)
    return found


@contextmanager
def _written(bootstrap: str) -> Iterator[list[int]]:
    """Write a row to the input every 0.2 s; yield the numbers of the rows so far."""
    producer, over, written = (
        Producer({"bootstrap.servers": bootstrap}),
        threading.Event(),
        [0],
    )

    def write() -> None:
        while not over.wait(_EVERY_S):
            row = json.dumps({"id": f"n-{written[-1]}", "page": "/a", "n": written[-1] + 1})
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
def _reader(bootstrap: str, topic: str) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
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


# --- in_airflow -----------------------------------------------------------------------------------
# Runs the section "Run it in Airflow" of docs/tutorial.md, command by command.


_READY = "Airflow is ready"
_ADVISED = {"AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30"}
"""The setting that docs/production.md advises for a worker that dies; 300 by default."""
_AGAIN_S = 2.0
_END_S = 60.0


@dataclass(frozen=True)
class Terminal:
    """A user's terminal for the tutorial's commands: a folder, and the variables that are set."""

    folder: Path
    environment: dict[str, str]

    def run(self, *command: str, rows: Path | None = None, again: bool = False) -> str:
        """Run a command, and return its output; no figure is given where it fails.

        Args:
            command: the program and its arguments.
            rows: a file for its standard input.
            again: repeat until it succeeds: Airflow may not have read the DAGs yet.
        """
        deadline = time.monotonic() + _WAIT_S
        while True:
            with contextlib.ExitStack() as stack:
                given = stack.enter_context(rows.open("rb")) if rows else subprocess.DEVNULL
                done = subprocess.run(
                    command,
                    cwd=self.folder,
                    env=self.environment,
                    stdin=given,
                    capture_output=True,
                    check=False,
                )
            if done.returncode == 0:
                return done.stdout.decode()
            if not again or time.monotonic() > deadline:
                sys.stderr.buffer.write(done.stdout + done.stderr)
                refuse(f"{' '.join(command)} ended with", done.returncode, 0)
            time.sleep(_AGAIN_S)


def _in_airflow(folder: Path, installed: Path, rounds: int) -> dict[str, list[float]]:
    """Return the seconds to a ready Airflow, to the first row, and from each kill to a new row."""
    project = folder / _NAME
    environment = _users(installed) | _airflow_settings(project, folder)
    began = time.monotonic()
    Terminal(folder, environment).run("airflow-eos", "new", _NAME)
    _without_maven(project)
    user = Terminal(project, environment)
    broker = json.loads(user.run("airflow-eos", "broker", "start", "--json"))
    try:
        return _through(user, broker["bootstrap_servers"], began, rounds)
    finally:
        user.run("airflow-eos", "broker", "stop", "--remove")


def _through(user: Terminal, bootstrap: str, began: float, rounds: int) -> dict[str, list[float]]:
    """Run the tutorial from its topics on; then end Airflow with its children."""
    output = f"{_NAME}.out"
    user.run("airflow-eos", "broker", "topic", _NAME, output)
    user.run("airflow-eos", "broker", "write", _NAME, rows=user.folder / "rows.tsv")
    with _standalone(user), _reader(bootstrap, output) as reader:
        ready = time.monotonic() - began
        extra = ("--conn-extra", json.dumps({"bootstrap.servers": bootstrap}))
        add = ("airflow", "connections", "add")
        user.run(*add, "kafka_default", "--conn-type", "kafka", *extra)
        user.run(*add, "spark_default", "--conn-type", "spark", "--conn-host", "local[2]")
        unpause = ("airflow", "dags", "unpause", "-y", "--treat-dag-id-as-regex")
        user.run(*unpause, f"{_NAME}.*", again=True)
        user.run("airflow", "dags", "trigger", _NAME, again=True)
        _await_newer(reader, -1)
        first = time.monotonic() - began
        print(f"ready {ready:.1f} s, first row {first:.1f} s", flush=True)
        with _written(bootstrap) as written:
            _await_newer(reader, 0)
            kills = [_worker_and_driver_killed(user, reader, written) for _ in range(rounds)]
        user.run("airflow-eos", "drain", f"checkpoints/{_NAME}")
        told = ("airflow-eos", "audit", _NAME, output, "-b", bootstrap, "--id", "value.id")
        user.run(*told)  # the audit fails where a row is lost or duplicated
    return {"airflow_ready": [ready], "airflow_first_row": [first], "airflow_kill": kills}


def _worker_and_driver_killed(user: Terminal, reader: Consumer, written: list[int]) -> float:
    """SIGKILL the driver, its JVM, the task and its worker; return the seconds to a new row."""
    beat = read_heartbeat(CheckpointStore.open(user.folder / "checkpoints" / _NAME))
    assert beat is not None
    driver = psutil.Process(beat.pid)
    doomed = [driver, *driver.parents()[:3]]
    began, newest = time.monotonic(), written[-1]
    for each in doomed:
        each.suspend()  # suspend all first, so that none can report another's end
    for each in doomed:
        each.kill()
    _await_newer(reader, newest)
    print(f"worker and driver killed: {time.monotonic() - began:.1f} s", flush=True)
    return time.monotonic() - began


@contextmanager
def _standalone(user: Terminal) -> Iterator[None]:
    """Run ``airflow standalone``; the block begins when its log says that it is ready."""
    log = user.folder / "standalone.log"
    with (
        log.open("wb") as out,
        subprocess.Popen(
            ["airflow", "standalone"],
            cwd=user.folder,
            env=user.environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            _await_ready(process, log)
            yield
        except BaseException:
            shutil.copy(log, "/dev/stderr")
            raise
        finally:
            process.send_signal(signal.SIGINT)  # as Ctrl-C, which ends its four processes
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            end_every_process_with(f"AIRFLOW_HOME={user.folder}")


def _await_ready(standalone: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _WAIT_S
    while _READY not in log.read_text(encoding="utf-8", errors="replace"):
        refuse("airflow standalone ended with", standalone.poll(), None)
        if time.monotonic() > deadline:
            raise SystemExit("airflow standalone is not ready. No figure is given.")
        time.sleep(_EVERY_S)


def _airflow_settings(project: Path, folder: Path) -> dict[str, str]:
    """Return the tutorial's variables, the advised one, and free ports instead of the defaults."""
    api, triggerer, worker = free_ports(3)
    url = f"http://{HOST}:{api}"
    return _ADVISED | {
        "AIRFLOW_HOME": str(project),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__API__HOST": HOST,
        "AIRFLOW__API__PORT": str(api),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(triggerer),
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(worker),
        "SPT_NOENV": "1",  # else setproctitle wipes the variable by which processes are found
        "SPARK_LOCAL_IP": "127.0.0.1",
        "XDG_STATE_HOME": str(folder / "state"),  # a broker of our own
    }


def _without_maven(project: Path) -> None:
    """Let Spark take the jars that ``try`` has fetched: downloads are not measured."""
    dag = project / "dags" / f"{_NAME}.py"
    text = dag.read_text(encoding="utf-8")
    [packages] = [line for line in text.splitlines() if line.strip().startswith("packages=")]
    jars = ",".join(map(str, spark_jars()))
    dag.write_text(text.replace(packages, f"    jars={jars!r},"), encoding="utf-8")


def _result(seconds: dict[str, list[float]], rounds: int) -> Result:
    medians = {what: statistics.median(seconds[what]) for what in _LABELS if what in seconds}
    rows = [
        (
            _LABELS[what],
            f"{median:.1f}",
            f"{max(seconds[what]):.1f}",
            str(_GOALS_S.get(what, "-")),
            str(len(seconds[what])),
        )
        for what, median in medians.items()
    ]
    title = "What a new user waits for"
    return Result(
        name="first_row",
        settings={"kills": rounds, "a row every": f"{_EVERY_S} s"},
        raw=seconds,
        ratios={},
        charts=[Chart(title, "s", {what: {"p50": s} for what, s in medians.items()})],
        tables=[Table(title, ("what", "p50, s", "longest, s", "asked, at most", "times"), rows)],
    )


def _run_task(project: str, checkpoint: str) -> None:
    """Execute the operator as Airflow's task does."""
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
