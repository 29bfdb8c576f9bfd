"""Time from a driver's kill to the next new row that readers have, with and without a standby.

An app copies a topic into which a row goes every 10 ms. Its driver, JVM and Python, is killed with
SIGKILL; without a standby another driver is submitted in the same moment, which is the best that a
supervisor can do, and once more with an archive of the classes that a driver before has loaded.
Then a driver with a standby is killed, and ten drivers hand over, one to the next: there the
longest time without a new row counts. Memory and CPU are those of a standby that waits, of Java and
Python, with an archive of classes as new projects have one: while it warms up, and after that. What
its processes share counts once.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from airflow_eos.core.checkpoint import CheckpointStore, newest_term
from airflow_eos.core.checkpoint.standby import hand_over, standbys
from airflow_eos.local import spark_jars
from airflow_eos.sinks.source import tuned_spark_conf
from benchmarks import rows
from benchmarks.plot import Chart
from benchmarks.report import ROOT, Result, Table
from benchmarks.stage import Stage, refuse, staged

_ROUNDS = 3
_PARTITIONS = 4
_ARCHIVED_ROWS = 1000
_EVERY_S = 0.01
_PATIENCE_S = 240.0
_SETTLED_S = 8.0
"""Seconds for which a driver has delivered before it is killed or hands over."""
_WARMING_S, _RESTING_S, _WATCHED_S = 40.0, 80.0, 30.0
"""Seconds of a standby's warm-ups, until it has rested since, and for which it is watched then."""
_HANDOVERS = 10
_HANDED_S = 20.0
"""Seconds of a standby's warm-ups before the driver hands over to it."""
_AFTER_S = 3.0
"""Seconds after the standby has its term in which a gap still is the handover's."""
_APP = Path(__file__).parent / "standby_app.py"
_CONF = {**tuned_spark_conf(), "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
_LABELS = {
    "alone": "killed, another submitted at once",
    "archived": "killed, another submitted at once, with a class archive",
    "standby": "killed, a standby takes over",
    "handover": "handed over to a standby: longest time without a new row",
}
_WAITS = "waits"
"""The way that measures what a standby costs, and no time."""


class Cost(NamedTuple):
    """A waiting standby's memory in MiB, and its cores while it warms up and after that."""

    mib: float
    warming: float
    resting: float


@dataclass
class Flow:
    """The times at which each row was sent, and seen by a ``read_committed`` reader."""

    sent: list[float] = field(default_factory=list)
    seen: dict[int, float] = field(default_factory=dict)
    twice: int = 0

    def new_row_after(self, moment: float) -> float | None:
        """Return when the first row sent after ``moment`` was visible; None: none is yet."""
        late = (at for row, at in list(self.seen.items()) if self.sent[row] > moment)
        return min(late, default=None)

    def longest_gap(self, since: float) -> float:
        """Return the longest time without a new row, in seconds."""
        times = sorted(at for at in list(self.seen.values()) if at > since)
        return max(b - a for a, b in zip([since, *times], times, strict=False))


def run(arguments: argparse.Namespace) -> Result:
    """Measure kills alone, kills with a standby, and handovers, in turns."""
    rounds = arguments.rounds or _ROUNDS
    ways = arguments.only.split(",") if arguments.only else [*_LABELS, _WAITS]
    seconds: dict[str, list[float]] = {way: [] for way in ways if way != _WAITS}
    cost: list[Cost] = []
    with staged() as stage:
        stage.topic("input", _PARTITIONS)
        if {"archived", _WAITS} & {*ways}:
            rows.fill(stage.bootstrap, "input", _ARCHIVED_ROWS)
            archived(stage)
        for number in range(rounds):
            for way in ways if number % 2 == 0 else ways[::-1]:
                with _pipeline(stage, f"{way}-{number}") as pipeline:
                    if way == _WAITS:
                        cost.append(_waiting(pipeline))
                        print(f"a standby: {cost[-1]}", flush=True)
                        continue
                    for found in _gaps(pipeline, way):
                        seconds[way].append(found)
                        print(f"{_LABELS[way]}: {found:.2f} s", flush=True)
    return _result(seconds, cost, rounds)


@dataclass
class Pipeline:
    """A pipeline that delivers while the block runs: its driver is the last of ``drivers``."""

    stage: Stage
    name: str
    flow: Flow
    drivers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    conf: Mapping[str, str] = field(default_factory=lambda: _CONF)

    @property
    def store(self) -> CheckpointStore:
        """The pipeline's checkpoint."""
        return CheckpointStore.open(self.stage.folder / self.name / "checkpoint")

    def start(self, *more: str) -> None:
        """Start a driver."""
        self.drivers.append(_started(self.stage, self.name, *more, conf=self.conf))

    def stand_by(self) -> None:
        """Start another driver, and wait until it stands by behind the one that delivers."""
        self.start("--standby")
        term = newest_term(self.store)
        _wait(lambda: any(each.behind == term for each in standbys(self.store)), "a standby")


@contextmanager
def _pipeline(stage: Stage, name: str) -> Iterator[Pipeline]:
    stage.topic(name, _PARTITIONS)
    (stage.folder / name / "checkpoint").mkdir(parents=True)
    with _flowing(stage, name) as flow:
        pipeline = Pipeline(stage, name, flow)
        try:
            yield pipeline
        finally:
            for each in pipeline.drivers:
                _kill(each)
    refuse("rows that came twice", flow.twice, 0)


def _gaps(pipeline: Pipeline, way: str) -> Iterator[float]:
    """Yield the seconds without a new row of one kill, or of ten handovers."""
    if way == "handover":
        yield from _handed_over(pipeline)
    else:
        yield _killed(pipeline, way)


def _killed(pipeline: Pipeline, way: str) -> float:
    """Return the seconds from the driver's kill until a new row."""
    pipeline.start()
    _wait(lambda: bool(pipeline.flow.seen), "the first row")
    if way == "standby":
        pipeline.stand_by()
    time.sleep(_WARMING_S if way == "standby" else _SETTLED_S)
    if way == "archived":
        pipeline.conf = archived(pipeline.stage)
    began = time.monotonic()
    _kill(pipeline.drivers[0])
    if way != "standby":
        pipeline.start()
    found = _new_row(pipeline.flow, began) - began
    refuse("terms taken", newest_term(pipeline.store), 2)
    return found


def _handed_over(pipeline: Pipeline) -> Iterator[float]:
    """Yield the longest time without a new row in each handover of a driver to the next one."""
    flow, store = pipeline.flow, pipeline.store
    pipeline.start()
    _wait(lambda: bool(flow.seen), "the first row")
    for term in range(2, 2 + _HANDOVERS):
        pipeline.stand_by()
        time.sleep(_HANDED_S)
        began = time.monotonic()
        hand_over(store, requested_by="benchmark", reason="measured")
        _wait(lambda: newest_term(store) == term, "the term of the standby")  # noqa: B023
        _new_row(flow, time.monotonic())
        time.sleep(_AFTER_S)
        yield flow.longest_gap(began)
        pipeline.drivers[-2].wait(_PATIENCE_S)


def _waiting(pipeline: Pipeline) -> Cost:
    pipeline.conf = archived(pipeline.stage)
    pipeline.start()
    _wait(lambda: bool(pipeline.flow.seen), "the first row")
    pipeline.stand_by()
    return _cost(pipeline.drivers[-1])


def _new_row(flow: Flow, since: float) -> float:
    """Wait for a row sent after ``since``; return when it was seen."""
    _wait(lambda: flow.new_row_after(since) is not None, "a new row")
    return flow.new_row_after(since) or 0.0


def archived(stage: Stage) -> dict[str, str]:
    """Return settings with the archive of classes that a first driver, of rows, has left."""
    archive = stage.folder / "driver.jsa"
    if not archive.exists():
        stage.topic("archive", _PARTITIONS)
        (stage.folder / "archive" / "checkpoint").mkdir(parents=True)
        conf = tuned_spark_conf(class_archive=str(archive))
        driver = _started(stage, "archive", "--start", "earliest", conf=conf)
        try:
            _wait(archive.exists, "an archive of classes")
        finally:
            _kill(driver)
    return {**_CONF, **tuned_spark_conf(class_archive=str(archive))}


def _started(
    stage: Stage, name: str, *more: str, conf: Mapping[str, str] = _CONF
) -> subprocess.Popen[bytes]:
    submit = str(Path(sys.executable).with_name("spark-submit"))
    every = {**_CONF, **conf}
    options = [part for key, value in every.items() for part in ("--conf", f"{key}={value}")]
    jars = ",".join(str(jar) for jar in spark_jars())
    checkpoint = stage.folder / name / "checkpoint"
    told = ["--bootstrap-servers", stage.bootstrap, "--checkpoint", str(checkpoint)]
    told += ["--prefix", name, "--output", name, "--trigger", "200 milliseconds"]
    told += ["--start", "latest"]
    with (stage.folder / name / f"log-{time.time_ns()}").open("wb") as log:
        return subprocess.Popen(
            [submit, "--master", "local[2]", "--jars", jars, *options, str(_APP), *told, *more],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the JVM, the driver's Python and its workers."""
    found = (
        [each.pid for each in psutil.Process(process.pid).children(recursive=True)]
        if (process.poll() is None)
        else []
    )
    for pid in [process.pid, *found]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait(30)


def _cost(process: subprocess.Popen[bytes]) -> Cost:
    warming = _cores(process, _WARMING_S)
    time.sleep(_RESTING_S)
    resting = _cores(process, _WATCHED_S)
    used = sum(each.memory_full_info().pss for each in _processes(process))
    return Cost(used / 2**20, warming, resting)


def _cores(process: subprocess.Popen[bytes], seconds: float) -> float:
    before = _cpu(process)
    time.sleep(seconds)
    return (_cpu(process) - before) / seconds


def _cpu(process: subprocess.Popen[bytes]) -> float:
    return sum(sum(each.cpu_times()) for each in _processes(process))


def _processes(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    found = psutil.Process(process.pid)
    return [found, *found.children(recursive=True)]


@contextmanager
def _flowing(stage: Stage, topic: str) -> Iterator[Flow]:
    """Send a row every 10 ms, and read rows, while the block runs."""
    flow, over = Flow(), threading.Event()
    threads = [
        threading.Thread(target=each, args=(stage, topic, flow, over), daemon=True)
        for each in (_send, _read)
    ]
    for thread in threads:
        thread.start()
    try:
        yield flow
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _send(stage: Stage, topic: str, flow: Flow, over: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": stage.bootstrap, "linger.ms": 0})
    while not over.wait(_EVERY_S):
        flow.sent.append(time.monotonic())
        producer.produce("input", f"{topic} {len(flow.sent) - 1}".encode())
        producer.poll(0)
    producer.flush(30)


def _read(stage: Stage, topic: str, flow: Flow, over: threading.Event) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": stage.bootstrap,
            "group.id": "standby",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 20,
        }
    )
    consumer.assign([TopicPartition(topic, each, 0) for each in range(_PARTITIONS)])
    while not over.is_set():
        message = consumer.poll(0.1)
        if message is None or message.error() is not None:
            continue
        whose, _, row = (message.value() or b"").decode().partition(" ")
        if whose == topic:
            flow.twice += int(row) in flow.seen
            flow.seen.setdefault(int(row), time.monotonic())
    consumer.close()


def _wait(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > until:
            raise SystemExit(f"Waited {_PATIENCE_S:g} s for {what}. No figure is given.")
        time.sleep(0.01)


def _result(seconds: dict[str, list[float]], cost: list[Cost], rounds: int) -> Result:
    medians = {way: statistics.median(found) for way, found in seconds.items()}
    told: list[tuple[str, ...]] = [
        (_LABELS[way], f"{medians[way]:.2f}", f"{min(found):.2f}", f"{max(found):.2f}")
        for way, found in seconds.items()
    ]
    tables = [
        Table("Until the next new row that readers have", ("what", "p50, s", "least", "most"), told)
    ]
    raw: dict[str, Any] = {"seconds": seconds, "cost": cost}
    if cost:
        mib, warming, resting = (statistics.median(each) for each in zip(*cost, strict=True))
        tables.append(
            Table(
                "What standing by costs",
                ("memory, MiB", "cores in its first 40 s", "cores after that"),
                [(f"{mib:.0f}", f"{warming:.2f}", f"{resting:.2f}")],
            )
        )
    ratios = {}
    if {"alone", "standby"} <= seconds.keys():
        ratios["new_row_after_a_kill_standby_over_alone"] = medians["standby"] / medians["alone"]
    bars = {_LABELS[way]: {"p50": value} for way, value in medians.items()}
    return Result(
        name="standby",
        settings={"rounds": rounds, "row_every_s": _EVERY_S},
        raw=raw,
        ratios=ratios,
        charts=[Chart("Until the next new row that readers have", "s", bars)],
        tables=tables,
    )
