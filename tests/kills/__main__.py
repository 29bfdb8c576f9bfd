"""``python -m tests.kills [NAME …]``: kill parts of Airflow and Spark, and write the table.

A run of all of them writes ``RESULT.md``.

Each row is what was *seen*: how often a driver took a term, in which state Airflow's task ended and
in which try, what the audit says. Exit status 1 where a row is not what it should be.
"""

from __future__ import annotations

import enum
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.kills.stage import NOTICED_S, Pipeline, Stage, stage
from tests.kills.strikes import (
    api_server,
    cleared,
    deferred,
    driver,
    everything,
    executor,
    machine,
    marked,
    scheduler,
    task_process,
    time_passes,
    triggerer,
    worker,
)
from tests.support.written import commit, of_the_run

FOLDER = Path(__file__).parent
ABOUT = (
    "Written by `python -m tests.kills` ([how](../../docs/operator.md)): a real Airflow, Spark and "
    "broker; the audit reads all rows of the stream. *Drivers ever*: how many took a term, one "
    "after another. *Seen after*: until Airflow's state was true and an app was watched, or had "
    f"ended; Airflow itself calls a task dead that has not beaten for {NOTICED_S} s here."
)


@dataclass(frozen=True)
class Row:
    """One kill and what became of it."""

    killed: str
    app: str
    drivers: int
    state: str
    tries: int
    noticed_s: float
    audit: str
    ok: bool


class Fate(enum.Enum):
    """What must become of the app."""

    LIVES = "lived on"
    AGAIN = "started again"
    EITHER = "lived on, or was started again"
    """Spark in local mode starts its Python workers again, but a task that ran in one ends the app.
    A scheduler's successor resets what its LocalExecutor ran, and a task that cannot reach the API
    server for a few heartbeats is killed by its supervisor: then ``on_kill`` drains the app. A
    scheduler that reads its executor's word of the deferral only after the task has resumed calls
    that try failed, and the next one starts an app that was drained."""
    ENDS = "ended"


@dataclass(frozen=True)
class Case:
    """One kill."""

    name: str
    dag_id: str
    text: str
    strike: Callable[[Pipeline], None]
    fate: Fate
    marked: str = "failed"
    """The state that the task has where the app ends by it: as somebody has marked it."""


ATTENDED, DEFERRED, TIMED = "kills_attended", "kills_deferred", "kills_timed"
CASES = (
    Case("task", ATTENDED, "the task's process", task_process, Fate.LIVES),
    Case("worker", ATTENDED, "the task's process and its worker", worker, Fate.LIVES),
    Case("driver", ATTENDED, "the driver", driver, Fate.AGAIN),
    Case("executor", ATTENDED, "the executors' processes", executor, Fate.EITHER),
    Case("machine", ATTENDED, "driver, task and worker at once", machine, Fate.AGAIN),
    Case("scheduler", ATTENDED, "the scheduler", scheduler, Fate.EITHER),
    Case("api-server", ATTENDED, "the API server", api_server, Fate.EITHER),
    Case("cleared", ATTENDED, "nothing: the task was cleared", cleared, Fate.AGAIN),
    Case("timed-out", TIMED, "nothing: it ran out of time", time_passes, Fate.AGAIN),
    Case("everything", ATTENDED, "everything but the broker, at once", everything, Fate.AGAIN),
    Case("marked", ATTENDED, "nothing: marked failed", marked("failed"), Fate.ENDS),
    Case(
        "marked-success",
        ATTENDED,
        "nothing: marked success",
        marked("success"),
        Fate.ENDS,
        marked="success",
    ),
    Case(
        "triggerer", DEFERRED, "the triggerer, the task deferred", deferred(triggerer), Fate.EITHER
    ),
    Case("deferred", DEFERRED, "the driver, the task deferred", deferred(driver), Fate.AGAIN),
    Case(
        "cleared-deferred",
        DEFERRED,
        "nothing: the task was cleared, deferred",
        deferred(cleared),
        Fate.AGAIN,
    ),
    Case(
        "marked-deferred",
        DEFERRED,
        "nothing: marked failed, the task deferred",
        deferred(marked("failed")),
        Fate.ENDS,
    ),
)


def play(case: Case, pipeline: Pipeline) -> Row:
    """Kill, wait for what becomes of it, let the rest be delivered, and look."""
    pipeline.start(case.dag_id)
    before, first = pipeline.heartbeat, pipeline.drivers
    case.strike(pipeline)
    struck = time.monotonic()
    committed = pipeline.committed
    pipeline.until(lambda: _settled(case, pipeline, before.application_id, committed), "its fate")
    noticed_s = time.monotonic() - struck
    if case.fate is Fate.ENDS:
        pipeline.until(lambda: pipeline.heartbeat.phase == "stopped", "the app to drain")
        app = f"ended: {pipeline.heartbeat.end}"
        state = pipeline.task["state"]
        told = _resumed_by_hand(pipeline)
    else:
        pipeline.drain()
        app = (Fate.LIVES if pipeline.drivers == first else Fate.AGAIN).value
        state, told = pipeline.task["state"], ""
    report = pipeline.audit()
    lost, twice = report.lost, report.duplicated
    right = state == (case.marked if case.fate is Fate.ENDS else "success")
    right &= case.fate in {Fate.ENDS, Fate.EITHER} or app == case.fate.value
    return Row(
        killed=case.text,
        app=app,
        drivers=pipeline.drivers,
        state=f"{state}{told}",
        tries=int(pipeline.task["try_number"]),
        noticed_s=round(noticed_s, 1),
        audit=f"lost {lost}, duplicated {twice}, reordered {report.reordered}",
        ok=bool(report.ok) and right,
    )


def _settled(case: Case, pipeline: Pipeline, first: str, committed: int) -> bool:
    """Whether Airflow has seen it, and an app is watched again or has ended."""
    task = pipeline.task
    watched = task["state"] in {"running", "deferred"}
    match case.fate:
        case Fate.ENDS:
            return bool(task["state"] == case.marked)
        case Fate.LIVES:
            return watched and (case.name not in {"task", "worker"} or task["try_number"] > 1)
        case Fate.AGAIN:
            return watched and pipeline.heartbeat.application_id != first
        case Fate.EITHER:
            return watched and pipeline.committed > committed + 1


def _resumed_by_hand(pipeline: Pipeline) -> str:
    """Clear what was marked: a person wants it to run again."""
    cleared(pipeline)
    pipeline.drain()
    return f"; cleared: {pipeline.task['state']}"


def page(rows: Sequence[Row], commit: str) -> str:
    """Markdown."""
    right = sum(row.ok for row in rows)
    lines = ["# What was killed, and what became of it", "", ABOUT, ""]
    lines += [f"{right} of {len(rows)} as they must be. {of_the_run(commit)}.", ""]
    lines += ["| killed | the app | drivers ever | the task | tries | seen after | audit |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for row in rows:
        lines.append(
            f"| {row.killed} | {row.app} | {row.drivers} | {row.state} | {row.tries} "
            f"| {row.noticed_s:.0f} s | {row.audit}{'' if row.ok else ' **WRONG**'} |"
        )
    return "\n".join(lines) + "\n"


def seen(case: Case, on: Stage) -> Row:
    """Play one; what did not come within its time is a row as well."""
    pipeline = on.pipeline(case.name)
    try:
        return play(case, pipeline)
    except AssertionError as error:
        state = pipeline.task["state"] if pipeline.run else "never started"
        return Row(case.text, str(error), pipeline.drivers, state, 0, 0, "not asked", ok=False)


def main(asked: list[str]) -> int:
    """Play what was asked for; or everything, and write the table."""
    known = {case.name: case for case in CASES}
    if unknown := set(asked) - known.keys():
        sys.stderr.write(f"unknown: {', '.join(unknown)}; expected of {', '.join(known)}\n")
        return 2
    began = commit()
    rows: list[Row] = []
    with stage() as on:
        for name in asked or known:
            rows.append(seen(known[name], on))
            sys.stdout.write(f"{name}: {rows[-1]}\n")
            sys.stdout.flush()
    if not asked:
        written = page(rows, began)
        (FOLDER / "RESULT.md").write_text(written)
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
