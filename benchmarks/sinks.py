"""Throughput of our sinks, alone and together, compared with the ways of Spark's users today.

Each way reads orders from Kafka, and writes the same orders. All ratios are of time, ours over
theirs, so less is better.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg

from benchmarks import rows, spark
from benchmarks.compared import Figures, Found, result
from benchmarks.cpu import CpuMeter
from benchmarks.report import Result
from benchmarks.stage import Stage, refuse, staged
from benchmarks.targets import COLUMNS, PARTITIONS, TARGETS, Expected, Place, expected_of
from benchmarks.ways import JDBC_TUNED, WAYS
from tests.support.servers.jars import server_jars
from tests.support.servers.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS = 400_000
_ROUNDS = 3
_WARM, _BATCHES, _LAST = 1, 4, 1
"""Batches before, within and after the counted ones, as in ``benchmarks.throughput``."""
_WARM_UP_SHARE = 10
"""Before the first round each way runs once, uncounted, with a tenth of the rows."""
_JDBC = "postgresql-jdbc-42.7.13"
POSTGRES = {
    # As durable as a user's, with room for a run's log, so that no checkpoint falls into a run.
    "shared_buffers": "256MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",
    "autovacuum": "off",
}


@dataclass(frozen=True)
class Bench:
    """An input that every way delivers, and the systems that it delivers to."""

    session: SparkSession
    stage: Stage
    dsn: str
    input: str
    batch_rows: int
    batches: int
    expected: Expected

    def deliver(self, name: str, run: str) -> tuple[list[spark.Batch], CpuMeter]:
        """Run one way once; check its output, and remove it."""
        way, place = WAYS[name], Place(self.stage, self.dsn, run)
        targets = {each: TARGETS[each] for each in way.targets}
        for target in targets.values():
            target.make(place)
        source = spark.read(self.session, self.stage, self.input, **spark.bulk(self.batch_rows))
        with CpuMeter() as meter:
            orders = source.selectExpr("key", "value", *COLUMNS)
            found = spark.drained(way.start(orders, place))
        read = sum(batch.rows for batch in found)
        refuse(f"{run} read", read, self.batches * self.batch_rows)
        for kind, target in targets.items():
            visible = target.read(self.session, place)
            refuse(f"{run}, {kind}", visible, target.expected(self.expected))
            target.drop(place)
        return found, meter

    def measure(self, name: str, run: str) -> Figures:
        """Measure time and CPU of a row in one run."""
        found, meter = self.deliver(name, run)
        return _figures(meter, *spark.steady(found, _WARM, _BATCHES))


def _figures(meter: CpuMeter, count: int, start_ms: float, end_ms: float) -> Figures:
    used = meter.between(start_ms, end_ms)
    cpu = {kind: round(seconds * 1e6 / count, 3) for kind, seconds in used.items()}
    return Figures(round((end_ms - start_ms) * 1e3 / count, 3), cpu)


def filled(
    session: SparkSession, stage: Stage, dsn: str, topic: str, batches: int, batch_rows: int
) -> Bench:
    """Fill a topic with so many batches of so many rows, and return a bench on it."""
    stage.topic(topic, PARTITIONS)
    rows.fill(stage.bootstrap, topic, batches * batch_rows)
    expected = expected_of(session, stage, topic)
    refuse(topic, expected.topic[0], batches * batch_rows)
    return Bench(session, stage, dsn, topic, batch_rows, batches, expected)


@contextmanager
def benched() -> Iterator[tuple[SparkSession, Stage, EmbeddedPostgres]]:
    """Start Spark, a broker and a PostgreSQL."""
    with (
        staged() as stage,
        EmbeddedPostgres(fsync=True, settings=POSTGRES) as server,
        spark.session(jars=server_jars(_JDBC)) as session,
    ):
        yield session, stage, server


def asked_for(arguments: argparse.Namespace) -> list[str]:
    """Return the ways that ``--only`` names, in the order of ``WAYS``; else all."""
    only = arguments.only.split(",") if arguments.only else list(WAYS)
    return [way for way in WAYS if way in only] or list(WAYS)


def run(arguments: argparse.Namespace) -> Result:
    """Run all ways in turns, and return their ratios of time."""
    count, ways = arguments.rows or _ROWS, asked_for(arguments)
    batches = _WARM + _BATCHES + _LAST
    with benched() as (session, stage, server):
        of = partial(filled, session, stage, server.dsn)
        cold = of("warm-up", batches, count // _BATCHES // _WARM_UP_SHARE)
        for way in ways:
            cold.measure(way, f"warm-{way}".replace("_", "-"))
        found = _measure(of("input", batches, count // _BATCHES), ways, arguments.rounds or _ROUNDS)
        settings = _settings(count, server.dsn)
    return result(settings, found)


def _measure(bench: Bench, ways: list[str], rounds: int) -> Found:
    figures: Found = {way: [] for way in ways}
    for number in range(rounds):
        # In alternating order, so that a drift of the machine falls on all alike.
        for way in ways if number % 2 == 0 else ways[::-1]:
            found = bench.measure(way, f"{way}-{number}".replace("_", "-"))
            figures[way].append(found)
            print(f"{way}: {found.per_second:,} rows/s, {found}", flush=True)
    return figures


def _settings(count: int, dsn: str) -> dict[str, Any]:
    with psycopg.connect(dsn) as connection:
        (version,) = connection.execute("SHOW server_version").fetchone() or ("unknown",)
    return {
        "rows": count,
        "partitions": PARTITIONS,
        "batches": {"warm_up": _WARM, "counted": _BATCHES, "last": _LAST},
        "postgresql": {"version": version, "fsync": "on", **POSTGRES},
        "jdbc": {"driver": _JDBC, "tuned": JDBC_TUNED},
    }
