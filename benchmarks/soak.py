"""Checks that nothing grows over ``--rows`` batches at 100 ms, in ``--seconds`` at most.

One app copies a topic, one batch after the other; a page is asked for the app every few seconds,
and a trigger waits for the app. Sampled are the memory, descriptors and threads of each process,
the files of the checkpoint, and the times of a batch and of the page's answers. At the end every
row must have been delivered once, and the trigger must have reported the app's end.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer

from airflow_eos.core.checkpoint import CheckpointStore, StartedBy
from airflow_eos.core.checkpoint.drain import drain_newest
from airflow_eos.core.checkpoint.heartbeat import STARTED_BY
from benchmarks.plot import Chart
from benchmarks.report import ROOT, Result, Table
from benchmarks.soak_app import TRIGGER
from benchmarks.stage import Stage, refuse, staged

_BATCHES = 10_000
_RATE = 200
"""Rows a second, so that each batch has some."""
_SAMPLE_S, _ASK_S, _END_S = 10.0, 3.0, 120.0
_COMPARED = 500
"""The number of batches at the start and at the end whose medians are compared."""
_WARM = 0.02
"""The part of all batches in which a JVM warms up; not counted."""
_US = StartedBy(dag_id="soak", task_id="app", run_id="soak", map_index=-1, submission="soak")
_APP = ("driver, JVM", "driver, Python", "workers, Python")
_MEASURES = {
    "memory": "memory, MiB",
    "descriptors": "descriptors",
    "threads": "threads",
}


@dataclass
class Seen:
    """Samples, each with the number of the newest batch then, and figures by name."""

    samples: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    asked: list[tuple[int, float]] = field(default_factory=list)
    """Times of the page's answers, in ms."""
    batches: dict[int, float] = field(default_factory=dict)
    """Time of each batch, in ms."""


def run(arguments: argparse.Namespace) -> Result:
    """Run and sample the app for so many batches."""
    wanted, seen = arguments.rows or _BATCHES, Seen()
    until = time.monotonic() + (arguments.seconds or float("inf"))
    with staged() as stage:
        for name in ("input", "output"):
            stage.topic(name, 1)
        with _running(stage) as processes, _sending(stage) as sent:
            page = _page_of(processes["page"])
            with _asking(page, stage, seen):
                while _newest(stage) < wanted and time.monotonic() < until:
                    time.sleep(_SAMPLE_S)
                    _sample(processes, stage, seen)
            store = CheckpointStore.open(_checkpoint(stage))
            sent.set()
            time.sleep(_ASK_S)  # so that the last rows are read
            drain_newest(store, requested_by="soak", reason="enough")
            refuse("the app's exit status", processes["app"].wait(_END_S), 0)
            told, _ = processes["trigger"].communicate(timeout=_END_S)
            refuse("what the trigger told", json.loads(told)["end"], "DRAINED")
        read = stage.read("output")
        refuse("rows delivered", read["rows"], stage.read("input")["rows"])
        _take_told(stage, seen)
    return _result(seen, min(wanted, max(seen.batches)), read["rows"])


def _checkpoint(stage: Stage) -> Path:
    return stage.folder / "soak"


def _newest(stage: Stage) -> int:
    """Return the newest complete batch; -1 where none is complete."""
    folder = _checkpoint(stage) / "commits"
    done = [int(each.name) for each in folder.glob("*") if each.name.isdecimal()]
    return max(done, default=-1)


@contextmanager
def _running(stage: Stage) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Start the app, the trigger and the page; kill all three at the end."""
    told = json.dumps({"bootstrap": stage.bootstrap, "folder": str(stage.folder)})
    checkpoint, ours = str(_checkpoint(stage)), "benchmarks.soak_app"
    with ExitStack() as stack:
        found: dict[str, subprocess.Popen[str]] = {}

        def start(name: str, *command: str) -> None:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=ROOT,
                env={**os.environ, STARTED_BY: _US.as_text()},
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(_end, process)
            found[name] = process

        start("app", ours, "app", told)
        while _newest(stage) < 0:
            refuse("the app's exit status while it starts", found["app"].poll(), None)
            time.sleep(0.5)
        start("trigger", ours, "trigger", checkpoint, _US.submission)
        kafka = ("--bootstrap-servers", stage.bootstrap)
        start("page", "airflow_eos", "ui", checkpoint, "--port", "0", *kafka)
        yield found


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        for each in psutil.Process(process.pid).children(recursive=True):
            each.kill()
        process.kill()
    process.wait()


@contextmanager
def _sending(stage: Stage) -> Iterator[threading.Event]:
    """Send rows at a steady pace until the yielded event is set."""
    enough = threading.Event()

    def send() -> None:
        producer = Producer({"bootstrap.servers": stage.bootstrap, "linger.ms": 0})
        number = 0
        while not enough.wait(1 / _RATE):
            producer.produce("input", f"row {number} {'x' * 80}", str(number))
            producer.poll(0)
            number += 1
        producer.flush(30)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield enough
    finally:
        enough.set()
        sender.join()


def _page_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@contextmanager
def _asking(page: str, stage: Stage, seen: Seen) -> Iterator[None]:
    """Ask the page, as a browser does, for the list, the pipeline and its plan."""
    enough = threading.Event()
    faults: list[Exception] = []

    def look() -> None:
        began = time.monotonic()
        listed = _get(f"{page}api/pipelines")["rows"]
        for each in listed:
            for question in ("", "/plan"):
                _get(f"{page}api/pipelines/{each['id']}{question}")
        seen.asked.append((_newest(stage), (time.monotonic() - began) * 1000))

    def ask() -> None:
        while not enough.wait(_ASK_S):
            try:
                look()
            except Exception as error:  # noqa: BLE001 - told below, when the run is over
                faults.append(error)

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        yield
    finally:
        enough.set()
        asker.join()
    refuse("looks of the page that failed", faults, [])


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)


def _sample(processes: dict[str, subprocess.Popen[str]], stage: Stage, seen: Seen) -> None:
    refuse("the app's exit status while it runs", processes["app"].poll(), None)
    figures: dict[str, float] = {}
    app = psutil.Process(processes["app"].pid)
    for each in (app, *app.children(recursive=True)):
        try:
            java = "java" in each.name()
            name = _APP[1] if each == app else _APP[0] if java else _APP[2]
            _add(figures, name, each)
        except psutil.NoSuchProcess:  # a worker that has ended
            continue
    for name in ("page", "trigger"):
        _add(figures, name, psutil.Process(processes[name].pid))
    # Unlike rglob, os.walk passes over a folder that is removed meanwhile.
    figures["checkpoint: files"] = sum(len(files) for *_, files in os.walk(_checkpoint(stage)))
    seen.samples.append((_newest(stage), figures))


def _add(figures: dict[str, float], name: str, process: psutil.Process) -> None:
    with process.oneshot():
        found = {
            "memory": process.memory_info().rss / 2**20,
            "descriptors": process.num_fds(),
            "threads": process.num_threads(),
        }
    for measure, value in found.items():
        figure = f"{name}: {_MEASURES[measure]}"
        figures[figure] = figures.get(figure, 0.0) + value


def _take_told(stage: Stage, seen: Seen) -> None:
    """Add the figures that the app itself has written."""
    names = {
        "heap": f"{_APP[0]}: heap after a collection, MiB",
        "off_heap": f"{_APP[0]}: classes and code, MiB",
        "objects": f"{_APP[1]}: objects after a collection",
    }
    for line in (stage.folder / "told").read_text().splitlines():
        told = json.loads(line)
        if "batch" in told:
            seen.batches[told["batch"]] = told["ms"]
        else:
            figures = {name: told[key] for key, name in names.items()}
            seen.samples.append((told["at"], figures))


def _at(samples: Sequence[tuple[int, float]], since: float, until: float) -> float:
    """Return the median of the samples between two batches."""
    found = [value for batch, value in samples if since <= batch <= until]
    return statistics.median(found) if found else float("nan")


def _result(seen: Seen, wanted: int, rows: int) -> Result:
    series: dict[str, list[tuple[int, float]]] = {}
    for batch, figures in sorted(seen.samples, key=lambda each: each[0]):
        for name, value in figures.items():
            series.setdefault(name, []).append((batch, value))
    series["page: a look, ms"] = seen.asked
    steady = [(n, ms) for n, ms in sorted(seen.batches.items()) if n >= wanted * _WARM]
    compared = min(_COMPARED, len(steady) // 3)
    middle = (len(steady) - compared) // 2
    parts = (steady[:compared], steady[middle : middle + compared], steady[-compared:])
    took = [statistics.median(ms for _, ms in part) for part in parts]
    windows = [(wanted * at, wanted * (at + 0.1)) for at in (_WARM, 0.45, 0.9)]
    windows[-1] = (windows[-1][0], float("inf"))
    told = {name: [_at(found, *each) for each in windows] for name, found in series.items()}
    told = {"a batch, ms": took, **dict(sorted(told.items()))}
    heads = ("what", *(f"at batch {w * wanted:,.0f}" for w in (_WARM + 0.05, 0.5, 0.95)))
    table = Table(
        f"{len(seen.batches):,} batches with {rows:,} rows, each row delivered once",
        (*heads, "end ÷ start"),
        [(name, *(f"{v:,.1f}" for v in at), f"{at[2] / at[0]:.2f}") for name, at in told.items()],
    )
    grown = {name: at[2] / at[0] for name, at in told.items()}
    return Result(
        name="soak",
        settings={"batches": wanted, "trigger": TRIGGER, "rows_a_second": _RATE},
        raw={"samples": series, "compared_batches": compared},
        ratios={f"end_over_start: {name}": value for name, value in grown.items()},
        charts=[
            Chart(
                "At the end, of what it was at the start",
                "÷",
                {name: {"end ÷ start": value} for name, value in grown.items()},
            )
        ],
        tables=[table],
    )
