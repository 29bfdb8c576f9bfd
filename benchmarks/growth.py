"""How times grow with the age of a checkpoint, the tasks of a batch, and dangling transactions."""

from __future__ import annotations

import argparse
import statistics

from airflow_eos.core.checkpoint import CheckpointStore, DecisionLog, Verdict
from airflow_eos.core.recovery.execute import execute
from airflow_eos.core.recovery.facts import gather
from airflow_eos.core.recovery.plan import make_plan
from airflow_eos.kafka.client.connection import ConnectionPool
from benchmarks import checkpoints
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

_AGES = (10, 100, 1_000, 100_000)
_TASKS = (4, 64, 512)
_DANGLING = (1, 100, 5_000)
_REPEATS = 15
Seconds = dict[int, dict[str, float]]
"""Size → step → seconds."""


def run(arguments: argparse.Namespace) -> Result:
    """Measure the growth with age, tasks and dangling transactions."""
    repeats = arguments.rounds or _REPEATS
    with staged() as stage:
        stage.topic("out", 4)
        with ConnectionPool(settings_of(stage)) as wire:
            ages = _told("age", {age: _age(stage, wire, age, repeats) for age in _AGES})
            tasks = _told("tasks", {n: _tasks(stage, wire, n) for n in _TASKS})
            dangling = _told("dangling", {n: _dangling(stage, wire, n) for n in _DANGLING})
        _check_readers(stage)
    return _result(ages, tasks, dangling)


def _age(stage: Stage, wire: ConnectionPool, age: int, repeats: int) -> dict[str, float]:
    """Time a plan and a decision on a checkpoint of ``age`` batches, all retained."""
    store, participant = pipeline(stage, wire, f"age-{age}", batches=age)
    make_plan(gather(store, participant))  # warm-up: connections and imports
    with_heartbeat = [
        seconds_of(lambda: make_plan(gather(store, participant))) for _ in range(repeats)
    ]
    plan = make_plan(gather(store, participant))
    refuse(f"plan at age {age}", (plan.in_flight, plan.steps), (age - 1, ()))
    checkpoints.forget_heartbeat(store)
    without = [seconds_of(lambda: make_plan(gather(store, participant))) for _ in range(repeats)]
    decided = [_look_and_decide(store, age - 1) for _ in range(repeats)]
    return {
        "plan": statistics.median(with_heartbeat),
        "plan without a heartbeat": statistics.median(without),
        "look and decide": statistics.median(decided),
    }


def _look_and_decide(store: CheckpointStore, batch_id: int) -> float:
    """Time the decision of one batch by the driver, where no other driver has decided."""
    decisions = DecisionLog(store)
    decision = decision_on(batch_id, 1, Verdict.COMMIT, ())

    def work() -> bool:
        return not decisions.of_batch(batch_id) and decisions.record(decision)

    seconds, stands = timed(work)
    refuse(f"decision of batch {batch_id}", stands, expected=True)
    store.delete_folder(f"eos/decisions/{batch_id}")
    return seconds


def _tasks(stage: Stage, wire: ConnectionPool, count: int) -> dict[str, float]:
    """Time decide and settle for ``count`` transactions, and a plan as if the driver died between.

    The transactions are real and open.
    """
    prefix = f"tasks-{count}"
    store, participant = pipeline(stage, wire, prefix, batches=10)
    prepared = open_transactions(wire, prefix, count)
    decision = decision_on(9, 1, Verdict.COMMIT, prepared)
    decisions = DecisionLog(store)
    found = {"decide": seconds_of(lambda: decisions.record(decision))}
    planning, plan = timed(lambda: make_plan(gather(store, participant)))
    refuse(f"steps of {prefix}", len(plan.steps), count)
    found["plan the commits"] = planning
    found["settle"] = seconds_of(lambda: participant.commit(prepared))
    found["decide and settle"] = found["decide"] + found["settle"]
    return found


def _dangling(stage: Stage, wire: ConnectionPool, count: int) -> dict[str, float]:
    """Time a recovery where a driver left ``count`` transactions open and undecided."""
    prefix = f"dangling-{count}"
    store, participant = pipeline(stage, wire, prefix, batches=10)
    opening, _ = timed(lambda: open_transactions(wire, prefix, count))
    planning, plan = timed(lambda: make_plan(gather(store, participant)))
    refuse(f"steps of {prefix}", len(plan.steps), count)
    executing, report = timed(lambda: execute(plan, store, participant, force=True))
    refuse(f"results of {prefix}", len(report.results), count)
    left = make_plan(gather(store, participant))
    refuse(f"left of {prefix}", len(left.steps), 0)
    both = planning + executing
    return {
        "open (not ours to judge)": opening,
        "plan": planning,
        "execute": executing,
        "both": both,
    }


def _check_readers(stage: Stage) -> None:
    """Refuse the figures unless readers see exactly the committed rows, and none is held up."""
    refuse("rows visible", stage.read("out")["rows"], sum(_TASKS))


def _told(what: str, found: Seconds) -> Seconds:
    for size, parts in found.items():
        print(what, size, {name: f"{s * 1000:.1f} ms" for name, s in parts.items()}, flush=True)
    return found


def _result(ages: Seconds, tasks: Seconds, dangling: Seconds) -> Result:
    young, old = ages[_AGES[0]], ages[_AGES[-1]]
    few, many = _DANGLING[1], _DANGLING[2]
    measured = {"age": ages, "tasks": tasks, "dangling": dangling}
    heads = {
        "age": "batches",
        "tasks": "transactions of a decision",
        "dangling": "dangling transactions",
    }
    titles = {
        "age": "A checkpoint that ages",
        "tasks": "A batch with more tasks",
        "dangling": "More dangling transactions to recover",
    }
    return Result(
        name="growth",
        settings={"ages": _AGES, "tasks": _TASKS, "dangling": _DANGLING},
        raw={"seconds": measured},
        ratios={
            "plan_100000_batches_over_10": old["plan"] / young["plan"],
            "plan_without_heartbeat_100000_batches_over_10": old["plan without a heartbeat"]
            / young["plan without a heartbeat"],
            "decide_100000_batches_over_10": old["look and decide"] / young["look and decide"],
            "per_task_512_over_64": (tasks[512]["decide and settle"] / 512)
            / (tasks[64]["decide and settle"] / 64),
            "per_dangling_5000_over_100": (dangling[many]["both"] / many)
            / (dangling[few]["both"] / few),
            "dangling_5000_seconds": dangling[many]["both"],
        },
        charts=[
            Chart(
                titles[what],
                "ms",
                {f"{size:,}": {k: s * 1000 for k, s in p.items()} for size, p in found.items()},
                logarithmic=True,
            )
            for what, found in measured.items()
        ],
        tables=[_table(titles[what], heads[what], found) for what, found in measured.items()],
    )


def _table(title: str, head: str, found: Seconds) -> Table:
    parts = list(next(iter(found.values())))
    rows = [
        (f"{size:,}", *(f"{seconds[part] * 1000:,.1f}" for part in parts))
        for size, seconds in found.items()
    ]
    return Table(f"{title}, ms", (head, *parts), rows)
