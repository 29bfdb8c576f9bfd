"""Times of the driver's steps in one batch of many tasks, to a topic of 1,000 partitions."""

from __future__ import annotations

import argparse
import contextlib

from airflow_eos.core.checkpoint import DecisionLog, Verdict
from airflow_eos.core.protocol.decision import Outcome, encode
from airflow_eos.core.recovery.facts import gather
from airflow_eos.core.recovery.plan import Action, make_plan
from airflow_eos.errors import KafkaUnavailableError
from airflow_eos.kafka.client.connection import ConnectionPool
from benchmarks.plot import Chart
from benchmarks.prepared import (
    decision_on,
    open_transactions,
    pipeline,
    seconds_of,
    settings_of,
    timed,
)
from benchmarks.report import Result, Table
from benchmarks.stage import Stage, refuse, staged

_TASKS = (100, 1_000, 5_000)
_PARTITIONS = 1_000
_BATCH = 9
_TRIES = 10
Figures = dict[str, float]


def run(arguments: argparse.Namespace) -> Result:
    """Measure each number of tasks; ``--rows`` asks for one other number."""
    sizes = (arguments.rows,) if arguments.rows else _TASKS
    found: dict[int, Figures] = {}
    with staged() as stage:
        stage.topic("out", _PARTITIONS)
        with ConnectionPool(settings_of(stage)) as wire:
            _warm(stage, wire)
            for tasks in sizes:
                found[tasks] = _batch(stage, wire, tasks) | _lost(stage, wire, tasks)
                print(tasks, found[tasks], flush=True)
        refuse("rows visible", stage.read("out")["rows"], sum(sizes) + 1)
    return _result(found)


def _warm(stage: Stage, wire: ConnectionPool) -> None:
    """Write one row: a new broker with 1,000 partitions takes a while until it answers."""
    _, participant = pipeline(stage, wire, "warm", batches=2)
    for _ in range(_TRIES):
        with contextlib.suppress(KafkaUnavailableError):
            participant.commit(open_transactions(wire, "warm", 1))
            return
    refuse("a first transaction", None, "an answer")


def _batch(stage: Stage, wire: ConnectionPool, tasks: int) -> Figures:
    """Time decide and settle, and in between a plan, as after a driver that died there."""
    store, participant = pipeline(stage, wire, f"scale-{tasks}", batches=_BATCH + 1)
    opening, works = timed(lambda: open_transactions(wire, f"scale-{tasks}", tasks))
    decision = decision_on(_BATCH, 1, Verdict.COMMIT, works)
    log = DecisionLog(store)
    found = {
        "decision, kB": len(encode(decision)) / 1000,
        "open, s (the tasks do that)": opening,
        "decide, s": seconds_of(lambda: log.record(decision)),
        "read the decision, s": seconds_of(lambda: log.of_batch(_BATCH)),
    }
    found["list what is open, s"], listed = timed(participant.open)
    refuse(f"open of {tasks}", len(listed), tasks)
    found["plan, s"], plan = timed(lambda: make_plan(gather(store, participant)))
    refuse(f"commits of {tasks}", plan.count(Action.COMMIT), tasks)
    found["settle, s"], outcomes = timed(lambda: participant.commit(works))
    refuse(f"outcomes of {tasks}", set(outcomes.values()), {Outcome.COMMITTED})
    found["settle again, s"] = seconds_of(lambda: participant.commit(works))
    return found


def _lost(stage: Stage, wire: ConnectionPool, tasks: int) -> Figures:
    """Time a promise whose transactions were all aborted: outcomes are read from the log."""
    store, participant = pipeline(stage, wire, f"lost-{tasks}", batches=_BATCH + 1)
    works = open_transactions(wire, f"lost-{tasks}", tasks)
    DecisionLog(store).record(decision_on(_BATCH, 1, Verdict.COMMIT, works))
    participant.abort([work.identity for work in works])
    asking, outcomes = timed(lambda: participant.outcome(works))
    refuse(f"lost of {tasks}", set(outcomes.values()), {Outcome.ABORTED})
    planning, plan = timed(lambda: make_plan(gather(store, participant)))
    [replay] = [step for step in plan.steps if step.action is Action.REPLAY]
    refuse(f"replays of {tasks}", replay.works, tasks)
    return {"ask the log, s": asking, "plan the replay, s": planning}


def _result(found: dict[int, Figures]) -> Result:
    parts = list(next(iter(found.values())))
    rows = [(f"{n:,}", *(f"{each[part]:,.3g}" for part in parts)) for n, each in found.items()]
    few, many = min(found), max(found)
    ratios = {
        f"{part.partition(',')[0]}_per_task_{many}_over_{few}": (found[many][part] / many)
        / (found[few][part] / few)
        for part in ("settle, s", "plan, s", "ask the log, s")
    }
    return Result(
        name="scale",
        settings={"tasks": list(found), "partitions": _PARTITIONS},
        raw={"figures": {str(n): each for n, each in found.items()}},
        ratios={name.replace(" ", "_"): ratio for name, ratio in ratios.items()},
        charts=[
            Chart(
                "One batch of many tasks",
                "s",
                {
                    f"{n:,}": {part: each[part] for part in parts if part.endswith(", s")}
                    for n, each in found.items()
                },
                logarithmic=True,
            )
        ],
        tables=[Table("One batch of many tasks, 1,000 partitions", ("tasks", *parts), rows)],
    )
