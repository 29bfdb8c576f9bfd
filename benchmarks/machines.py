"""The gain of a second executor machine: throughput of Kafka → Spark → Kafka on one and on two.

A machine here is a worker of Spark standalone with one core, limited with its children to a part of
the CPU, so that a second one adds CPU although both are on one real machine; broker and drivers
have no limit. A gain is throughput on two over throughput on one, within a round.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks import arrow_source, rows, spark
from benchmarks.machines_told import LABELS, Figures, Found, result
from benchmarks.report import ROOT, Result
from benchmarks.share import Share, share
from benchmarks.stage import Elsewhere, Stage, refuse, staged
from tests.support.servers.standalone import EmbeddedStandalone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MACHINES = (1, 2)
_CORES = 0.4
_ROWS = 1_800_000
_ROUNDS = 3
_PARTITIONS = 4
_WARM, _BATCHES, _LAST = 1, 3, 1
"""Batches before, within and after the counted ones, as in ``benchmarks.throughput``."""
_TRIGGER = {"availableNow": True}
_MEMORY_MB = 1024
_CONF = {
    "spark.executor.memory": f"{_MEMORY_MB}m",
    "spark.executorEnv.PYTHONPATH": str(ROOT),
    "spark.pyspark.python": sys.executable,
}


@dataclass(frozen=True)
class Cluster:
    """A number of machines, and the process of a driver with executors on all of them.

    The driver and its executors live as long as the benchmark: their JVMs stay warm.
    """

    standalone: EmbeddedStandalone
    shares: tuple[Share, ...]
    driver: ProcessPoolExecutor
    stage: Stage
    batch_rows: int
    expected: dict[str, Any]

    @property
    def machines(self) -> int:
        """The number of machines."""
        return len(self.shares)

    def begin(self, variant: str, run: str) -> Future[list[spark.Batch]]:
        """Let the driver copy the input to a new topic with the run's name."""
        self.stage.topic(run, _PARTITIONS)
        there = Elsewhere(self.stage.bootstrap, self.stage.folder)
        return self.driver.submit(_copied, variant, there, run, self.batch_rows)

    def judge(self, run: str, found: list[spark.Batch]) -> None:
        """End the benchmark where rows are missing, or work was done outside of the machines."""
        refuse(f"{run} read", sum(batch.rows for batch in found), self.expected["rows"])
        output = self.stage.read(run)
        refuse(run, {name: output[name] for name in self.expected}, self.expected)
        refuse(f"machines of {run}", self.standalone.executors(), self.machines)
        for machine, held in zip(self.standalone.workers, self.shares, strict=True):
            held.require(machine.pids())
        self.stage.drop(run)

    def measure(self, variant: str, run: str) -> Figures:
        """Measure one run, its output checked."""
        before = self._periods()
        found = self.begin(variant, run).result()
        ran, used_up = (b - a for a, b in zip(before, self._periods(), strict=True))
        self.judge(run, found)
        count, start_ms, end_ms = spark.steady(found, _WARM, _BATCHES)
        return Figures(round(count / (end_ms - start_ms) * 1000), round(used_up / ran, 3))

    def _periods(self) -> tuple[int, int]:
        found = [held.periods() for held in self.shares]
        return sum(ran for ran, _ in found), sum(used_up for _, used_up in found)


@contextmanager
def _cluster(stage: Stage, machines: int, batch_rows: int, expected: Any) -> Iterator[Cluster]:
    with ExitStack() as stack:
        shares = tuple(
            stack.enter_context(share(f"{machines}-{n}", _CORES)) for n in range(machines)
        )
        standalone = stack.enter_context(EmbeddedStandalone(machines, memory_mb=_MEMORY_MB))
        for machine, held in zip(standalone.workers, shares, strict=True):
            held.hold(machine.pids())
        driver = stack.enter_context(
            ProcessPoolExecutor(
                1,
                multiprocessing.get_context("spawn"),  # shares no state with this process
                initializer=_open_session,
                initargs=(standalone.url, machines),
            )
        )
        stack.callback(lambda: driver.submit(_close_session).result())
        yield Cluster(standalone, shares, driver, stage, batch_rows, expected)


_sessions = ExitStack()
"""In a driver's process: its Spark session, until it is asked to close it."""


def _open_session(url: str, machines: int) -> None:
    conf = {**_CONF, "spark.cores.max": str(machines), "spark.executor.cores": "1"}
    _sessions.enter_context(spark.session(master=url, conf=conf))


def _close_session() -> None:
    _sessions.close()


def _copied(variant: str, stage: Elsewhere, run: str, batch_rows: int) -> list[spark.Batch]:
    """In a driver's process: copy the whole input, and return the batches."""
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    assert session is not None
    if variant == "arrow":
        source = arrow_source.of(stage, "input", max_rows_per_batch=batch_rows)
        return arrow_source.drained(arrow_source.start(source, stage, run, run, _TRIGGER))
    return spark.drained(_started(session, variant, stage, run, batch_rows))


def _started(session: SparkSession, sink: str, stage: Elsewhere, run: str, batch_rows: int) -> Any:
    source = spark.read(session, stage, "input", **spark.bulk(batch_rows))
    return spark.start(sink, source, stage, run, run, _TRIGGER)


def run(arguments: argparse.Namespace) -> Result:
    """Run all variants on one and on two machines, in turns."""
    count, rounds = arguments.rows or _ROWS, arguments.rounds or _ROUNDS
    only = arguments.only.split(",") if arguments.only else list(LABELS)
    variants = [variant for variant in LABELS if variant in only] or list(LABELS)
    with staged() as stage, ExitStack() as stack:
        stage.topic("input", _PARTITIONS)
        batch_rows = count // _BATCHES
        rows.fill(stage.bootstrap, "input", (_WARM + _BATCHES + _LAST) * batch_rows)
        read = stage.read("input")
        expected = {name: read[name] for name in ("rows", "sum")}
        refuse("input", expected["rows"], (_WARM + _BATCHES + _LAST) * batch_rows)
        clusters = [
            stack.enter_context(_cluster(stage, machines, batch_rows, expected))
            for machines in _MACHINES
        ]
        _warm(clusters, variants)
        found = _measure(clusters, variants, rounds)
    settings = {
        "rows": count,
        "partitions": _PARTITIONS,
        "cores_of_a_machine": _CORES,
        "batches": {"warm_up": _WARM, "counted": _BATCHES, "last": _LAST},
    }
    return result(found, settings)


def _warm(clusters: list[Cluster], variants: list[str]) -> None:
    """Make uncounted runs, after which every machine has copied as many rows as any other.

    The clusters run at once, since none can take another's CPU.
    """
    for variant in variants:
        begun = [
            (f"warm-{variant}-{cluster.machines}-{n}", cluster)
            for cluster in clusters
            for n in range(cluster.machines)
        ]
        runs = [(run, cluster, cluster.begin(variant, run)) for run, cluster in begun]
        for run, cluster, batches in runs:
            cluster.judge(run, batches.result())


def _measure(clusters: list[Cluster], variants: list[str], rounds: int) -> Found:
    found: Found = {variant: {each.machines: [] for each in clusters} for variant in variants}
    turns = list(itertools.product(variants, clusters))
    for number in range(rounds):
        # In alternating order, so that a drift of the machine falls on all alike.
        for variant, cluster in turns if number % 2 == 0 else turns[::-1]:
            figures = cluster.measure(variant, f"{variant}-{cluster.machines}-{number}")
            found[variant][cluster.machines].append(figures)
            print(f"{variant} on {cluster.machines}: {figures}", flush=True)
    return found
