"""Speed of the writer alone, rows in memory to one transaction, beside librdkafka and Java."""

from __future__ import annotations

import argparse
import statistics
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer

from airflow_eos.arrow.producer.writer import TransactionalWriter
from airflow_eos.core.delivery.workers import tune_process
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.transactions.coordinator import end_transactions
from benchmarks import rows
from benchmarks.java import java
from benchmarks.plot import Chart
from benchmarks.report import Result, Table, median_ratio
from benchmarks.stage import Stage, refuse, staged

_ROWS = 3_000_000
_ROUNDS = 5
_WARM_ROWS = 300_000
_BROKER_WARM_UPS = 5
"""Uncounted transactions at first: a new broker spends most of its CPU on compiling."""
_PARTITIONS = 4
_LABELS = {
    "ours": "ours",
    "confluent_produce": "confluent-kafka, produce in a loop",
    "confluent_produce_batch": "confluent-kafka, produce_batch",
    "java": "Kafka's Java producer",
}
# Batches as large as ours, and room for them; other settings of these clients were not tried.
_LIBRDKAFKA: dict[str, Any] = {
    "compression.type": "lz4",
    "partitioner": "murmur2_random",
    "linger.ms": 50,
    "batch.size": 1_000_000,
    "batch.num.messages": 100_000,
    "queue.buffering.max.messages": 1_000_000,
}
_JAVA = {
    "compression.type": "lz4",
    "linger.ms": "50",
    "batch.size": "1000000",
    "buffer.memory": str(128 << 20),
}


@dataclass(frozen=True)
class _Cost:
    """Cost of one transaction: wall clock and CPU of the writing process, in seconds."""

    seconds: float
    cpu_seconds: float


@dataclass
class _Bench:
    stage: Stage
    batches: list[pa.RecordBatch]
    file: Path
    expected: tuple[int, int]

    def measure(self, variant: str, topic: str) -> _Cost:
        """Measure one transaction of one writer, its output checked."""
        warm = self.stage.topic(f"{topic}-warm", _PARTITIONS)
        self.stage.topic(topic, _PARTITIONS)
        cost: _Cost = getattr(self, variant)(topic)
        found = self.stage.read(topic)
        refuse(topic, (found["rows"], found["sum"]), self.expected)
        self.stage.drop(topic, warm)
        return cost

    @property
    def warm(self) -> list[pa.RecordBatch]:
        return self.batches[: max(1, _WARM_ROWS // rows.SPARK_BATCH)]

    def ours(self, topic: str) -> _Cost:
        """Time our writer, then EndTxn, as the driver sends it."""
        settings = KafkaSettings.from_librdkafka({"bootstrap.servers": self.stage.bootstrap})
        with ConnectionPool(settings) as wire:

            def write(target: str, batches: list[pa.RecordBatch]) -> None:
                writer = TransactionalWriter(wire, topic=target)
                writer.begin(f"ours-{topic}", 600_000)
                for batch in batches:
                    writer.write(batch)
                written = writer.prepare()
                assert written is not None
                assert written.identity is not None
                end_transactions(wire, [written.identity], commit=True)

            write(f"{topic}-warm", self.warm)
            return _timed(lambda: write(topic, self.batches))

    def confluent_produce(self, topic: str) -> _Cost:
        """Time ``produce`` row by row, from Arrow batches as a Spark task gets them."""

        def send(producer: Producer, target: str, batch: pa.RecordBatch) -> None:
            keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
            for key, value in zip(keys, values, strict=True):
                while True:
                    try:
                        producer.produce(target, value, key)
                        break
                    except BufferError:
                        producer.poll(0.01)
            producer.poll(0)

        return self._confluent(topic, send)

    def confluent_produce_batch(self, topic: str) -> _Cost:
        """Time ``produce_batch``, an Arrow batch at a time."""

        def send(producer: Producer, target: str, batch: pa.RecordBatch) -> None:
            messages = batch.to_pylist()
            while messages:
                producer.produce_batch(target, messages)
                messages = [message for message in messages if "_error" in message]
                for message in messages:
                    del message["_error"]
                producer.poll(0.01 if messages else 0)

        return self._confluent(topic, send)

    def _confluent(
        self, topic: str, send: Callable[[Producer, str, pa.RecordBatch], None]
    ) -> _Cost:
        servers = {"bootstrap.servers": self.stage.bootstrap}
        producer = Producer({**servers, "transactional.id": f"confluent-{topic}", **_LIBRDKAFKA})
        producer.init_transactions(60)

        def write(target: str, batches: list[pa.RecordBatch]) -> None:
            producer.begin_transaction()
            for batch in batches:
                send(producer, target, batch)
            producer.commit_transaction(120)

        write(f"{topic}-warm", self.warm)
        return _timed(lambda: write(topic, self.batches))

    def java(self, topic: str) -> _Cost:
        """Time Kafka's own producer, with rows as byte arrays in memory."""
        properties = [f"{name}={value}" for name, value in _JAVA.items()]
        warm = str(sum(batch.num_rows for batch in self.warm))
        arguments = (self.stage.bootstrap, topic, f"java-{topic}", str(self.file), warm)
        return _Cost(**java("WriteTransaction", *arguments, *properties))


def _timed(work: Callable[[], None]) -> _Cost:
    cpu, start = time.process_time(), time.perf_counter()
    work()
    return _Cost(time.perf_counter() - start, time.process_time() - cpu)


def run(arguments: argparse.Namespace) -> Result:
    """Run all writers in turns, in alternating order."""
    count = arguments.rows or _ROWS
    rounds = arguments.rounds or _ROUNDS
    variants = arguments.only.split(",") if arguments.only else list(_LABELS)
    batches = list(rows.batches(count))
    expected = (count, rows.content_sum(iter(batches)))
    costs: dict[str, list[_Cost]] = {variant: [] for variant in variants}
    tune_process()  # as every Python worker of Spark does after its first task; all but Java profit
    with staged() as stage:
        bench = _Bench(stage, batches, _dump(batches, stage.folder / "rows"), expected)
        for number in range(_BROKER_WARM_UPS):
            bench.measure("ours", f"before-{number}")
        for number in range(rounds):
            for variant in variants if number % 2 == 0 else variants[::-1]:
                cost = bench.measure(variant, f"{variant}-{number}")
                costs[variant].append(cost)
                print(f"{variant}: {count / cost.seconds:,.0f} rows/s", flush=True)
    return _result(count, costs)


def _dump(batches: list[pa.RecordBatch], target: Path) -> Path:
    """Write the rows to a file for ``WriteTransaction.java``, and return its path."""
    with target.open("wb") as out:
        out.write(struct.pack(">i", sum(batch.num_rows for batch in batches)))
        for batch in batches:
            columns = batch.column("key").to_pylist(), batch.column("value").to_pylist()
            for row in zip(*columns, strict=True):
                for text in row:
                    out.write(struct.pack(">i", len(text)))
                    out.write(text)
    return target


def _result(count: int, costs: dict[str, list[_Cost]]) -> Result:
    rates = {name: [count / cost.seconds for cost in found] for name, found in costs.items()}
    cpu = {
        name: [cost.cpu_seconds / count * 1e6 for cost in found] for name, found in costs.items()
    }
    others = [name for name in costs if name != "ours" and "ours" in costs]
    ratios = {f"ours_over_{name}": median_ratio(rates["ours"], rates[name]) for name in others}
    ratios |= {
        f"cpu_per_row_ours_over_{name}": median_ratio(cpu["ours"], cpu[name]) for name in others
    }
    rate = {_LABELS[name]: statistics.median(found) for name, found in rates.items()}
    cost = {_LABELS[name]: statistics.median(found) for name, found in cpu.items()}
    return Result(
        name="writer",
        settings={
            "rows": count,
            "partitions": _PARTITIONS,
            "warm_up_rows": _WARM_ROWS,
            "librdkafka": _LIBRDKAFKA,
            "java": _JAVA,
        },
        raw={"rows_per_second": _rounded(rates, 0), "cpu_microseconds_per_row": _rounded(cpu, 3)},
        ratios=ratios,
        charts=[
            Chart("One transaction, lz4", "rows/s", {k: {"rows/s": v} for k, v in rate.items()}),
            Chart(
                "CPU of the writing process", "µs a row", {k: {"µs": v} for k, v in cost.items()}
            ),
        ],
        tables=[
            Table(
                f"One transaction of {count:,} rows of about 110 bytes, lz4, medians",
                ("writer", "rows/s", "CPU a row, µs"),
                [(label, f"{rate[label]:,.0f}", f"{cost[label]:.2f}") for label in rate],
            )
        ],
    )


def _rounded(found: dict[str, list[float]], digits: int) -> dict[str, list[float]]:
    return {name: [round(value, digits) for value in values] for name, values in found.items()}
