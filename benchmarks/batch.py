"""``python -m benchmarks.batch``: the time of each step of one small batch.

The driver's steps are timed around its own functions, Spark's are read from its event log, a task's
from the metrics of its Python worker. Medians over the batches of the later rounds; the sinks run
in turns, in alternating order.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow_eos.core.delivery import batch, source, task
from airflow_eos.sinks.source import tuned_source_options
from benchmarks import rows, spark
from benchmarks.report import Table
from benchmarks.stage import staged

_SINKS = ("python", "at_least_once", "exactly_once")
_ROWS, _BATCHES, _WARM_BATCHES, _WARM_ROUNDS = 1000, 60, 15, 2
_STEPS: tuple[tuple[Any, str, str], ...] = (
    (batch.Attempts, "begin", "may we go on: our term, and the plan"),
    (batch.ExactlyOnceBatch, "_open_works", "what is open besides"),
    (batch, "require_decidable", "can each be decided"),
    (batch.Attempts, "promise", "the decision"),
    (batch.Authority, "confirm", "its note, and our term again"),
    (batch.ExactlyOnceBatch, "_settle", "commit, and look that readers see it"),
    (source, "_ids", "are the input's topics the same"),
)
"""Owner and name of each timed function, and its step in words."""
_SPARKS = {
    "trigger to our function: planning, offset log": "called",
    "planning the collect of the reports": "collect to job",
    "the job: both tasks": "job",
    "the longer task": "task",
    "the longer task's Python, waiting for its rows included": "time to execute Python code",
    "the reports to Python": "job to collected",
    "commit log": "commitOffsets",
    "the batch": "triggerExecution",
}

Times = list[tuple[str, float, float]]


def main() -> int:
    """Print a table: a row for each step, a column for each sink."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batch", description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--conf", action="append", default=[], help="KEY=VALUE, of Spark")
    arguments = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {sink: defaultdict(list) for sink in _SINKS}
    with tempfile.TemporaryDirectory() as logs:
        played = _played(
            arguments.rounds, logs, dict(each.split("=", 1) for each in arguments.conf)
        )
        jobs = _jobs(Path(logs))
        for sink, run, times, progress in played:
            for each in progress[_WARM_BATCHES:]:
                for step, ms in _taken_apart(each, times, jobs.get((run, each["batchId"]), {})):
                    found[sink][step].append(ms)
    names = [*_SPARKS, *(what for *_, what in _STEPS)]
    print(
        Table(
            f"A batch of {_ROWS} rows, p50 in ms",
            ("step", *_SINKS),
            [
                (name, *(_median(found[sink], _SPARKS.get(name, name)) for sink in _SINKS))
                for name in names
            ],
        ).markdown()
    )
    return 0


def _played(
    rounds: int, logs: str, conf: Mapping[str, str]
) -> list[tuple[str, str, Times, list[dict[str, Any]]]]:
    """Run all rounds; return sink, run id, driver's times and Spark's progress of each counted."""
    times: Times = []
    for owner, name, what in _STEPS:
        _timed(owner, name, what, times)
    _timed(batch.ExactlyOnceBatch, "__call__", "called", times)
    events = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{logs}",
        "spark.eventLog.compress": "false",
    }
    played = []
    with staged() as stage, spark.session(conf=events | {**conf}) as session:
        from pyspark.sql.classic.dataframe import DataFrame

        _timed(DataFrame, "collect", "collect", times)
        _timed(task, "_told", "collect", times)
        stage.topic("small", 4)
        rows.fill(stage.bootstrap, "small", _ROWS * _BATCHES)
        options = {**tuned_source_options(), "maxOffsetsPerTrigger": _ROWS}
        for number in range(rounds):
            for sink in _SINKS if number % 2 == 0 else _SINKS[::-1]:
                name = f"{sink}-{number}"
                output = stage.topic(name, 4)
                read = spark.read(session, stage, "small", **options).coalesce(2)
                times.clear()
                query = spark.start(sink, read, stage, name, output, {"availableNow": True})
                query.awaitTermination()
                told = [json.loads(each.json) for each in query.recentProgress]
                told = [each for each in told if each["numInputRows"]]
                if number >= _WARM_ROUNDS:
                    played.append((sink, str(query.runId), list(times), told))
                print(name, f"{len(told)} batches", file=sys.stderr, flush=True)
    return played


def _timed(owner: Any, name: str, what: str, times: Times) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.time()
        try:
            return original(*args, **kwargs)
        finally:
            times.append((what, began, time.time()))

    setattr(owner, name, timed)


def _jobs(logs: Path) -> dict[tuple[str, int], dict[str, float]]:
    """Read from Spark's events, by run and batch, a job's begin, end and longest task."""
    jobs: dict[int, dict[str, Any]] = {}
    of_stage: dict[int, int] = {}
    for line in (each for file in logs.rglob("*") if file.is_file() for each in file.open()):
        event = json.loads(line) if line.startswith("{") else {}
        kind = event.get("Event")
        if kind == "SparkListenerJobStart":
            told = event["Properties"]
            place = told.get("spark.job.description", ""), told.get("streaming.sql.batchId")
            jobs[event["Job ID"]] = {"place": place, "from": event["Submission Time"] / 1000}
            of_stage |= dict.fromkeys(event["Stage IDs"], event["Job ID"])
        elif kind == "SparkListenerJobEnd":
            jobs[event["Job ID"]]["until"] = event["Completion Time"] / 1000
        elif kind == "SparkListenerTaskEnd":
            info, job = event["Task Info"], jobs[of_stage[event["Stage ID"]]]
            worker = {each["Name"]: each.get("Update") for each in info["Accumulables"]}
            longest = {"task": info["Finish Time"] - info["Launch Time"], **worker}
            for name in ("task", "time to execute Python code"):
                job[name] = max(job.get(name, 0.0), float(longest.get(name) or 0))
    return {
        (run, int(job["place"][1])): job
        for job in jobs.values()
        if job["place"][1] is not None
        for run in _runs(job["place"][0])
    }


def _runs(description: str) -> Iterator[str]:
    """Yield the run's id from a text of ``StreamExecution.getBatchDescriptionString``."""
    for line in description.splitlines() or description.split("<br/>"):
        for part in line.split("<br/>"):
            if part.startswith("runId = "):
                yield part.removeprefix("runId = ").strip()


def _taken_apart(
    progress: Mapping[str, Any], times: Times, job: Mapping[str, float]
) -> Iterator[tuple[str, float]]:
    began = datetime.fromisoformat(progress["timestamp"]).timestamp()
    ended = began + progress["durationMs"]["triggerExecution"] / 1000
    yield from progress["durationMs"].items()
    mine = [each for each in times if began - 0.005 <= each[1] and each[2] <= ended + 0.008]
    spent: dict[str, float] = defaultdict(float)
    for what, since, until in mine:
        spent[what] += 1000 * (until - since)
        if what == "called":
            spent[what] = 1000 * (since - began)
        elif what == "collect" and job:
            yield "collect to job", 1000 * (job["from"] - since)
            yield "job to collected", 1000 * (until - job["until"])
    yield from spent.items()
    if job:
        yield "job", 1000 * (job["until"] - job["from"])
        yield "task", job["task"]
        yield "time to execute Python code", job["time to execute Python code"]


def _median(found: Mapping[str, list[float]], step: str) -> str:
    return f"{statistics.median(found[step]):.1f}" if found.get(step) else ""


if __name__ == "__main__":
    sys.exit(main())
