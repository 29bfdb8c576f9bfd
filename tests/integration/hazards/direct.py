"""The whole batch path without Spark: real refusals, ledger, recovery, tasks, decisions, broker.

:class:`Direct` does what Spark does around a batch (``offsets/N`` before it, ``commits/N`` after
it) and calls the task function in this process. All else is the product's own.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa

from airflow_eos.core.checkpoint import CheckpointStore, DecisionLog
from airflow_eos.core.delivery.batch import ExactlyOnceBatch
from airflow_eos.core.delivery.outputs import InPlanSink, OneSink
from airflow_eos.core.delivery.task import HASH_COLUMN, SinkTask, TaskOutput
from airflow_eos.kafka import sink as sink_module
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.sink import KafkaSink
from airflow_eos.kafka.transactions.listing import list_open
from airflow_eos.kinds.consumer_group.sink import ConsumerGroup
from tests.support.authority import LazyTasks, OneParticipant
from tests.support.starts import begun
from tests.support.topics import read_topic

Row = tuple[str, str]
SPARK: Any = SimpleNamespace(
    sparkContext=SimpleNamespace(
        applicationId="local-direct", setLocalProperty=lambda _name, _value: None
    ),
    conf=SimpleNamespace(get=lambda _name, default=None: default),
)
PULSE: Any = SimpleNamespace(
    start=lambda _term: None, enter_phase=lambda _batch, _phase: None, term=None, observer=None
)


class Frame:
    """Stands for a DataFrame: the rows (key, value) of each task."""

    def __init__(self, tasks: Sequence[Sequence[Row]]) -> None:
        self.tasks = [list(rows) for rows in tasks]

    def persist(self, _level: Any) -> Frame:
        return self

    def unpersist(self) -> None: ...


class DirectSink(OneParticipant):
    """``KafkaSink`` with its task function called here instead of in a Python worker of Spark."""

    def __init__(self, sink: KafkaSink) -> None:
        self.sink = sink
        self.outlet = TaskOutput(sink.name, sink.opened)
        self.before_task: Callable[[int], None] = lambda _task: None

    def tasks(self, rows: Any, *, transactional: bool = True) -> Any:
        assert transactional
        return LazyTasks(lambda: self.prepare(rows))

    def prepare(self, rows: Any, *, only: Collection[int] | None = None) -> list[Any]:
        task = SinkTask((self.outlet,), None if only is None else frozenset(only))
        reports: list[Any] = []
        for n, part in enumerate(rows.tasks):
            self.before_task(n)
            reports += task.run(n, 0, iter([arrow(part)]))
        return reports


def arrow(rows: Sequence[Row]) -> pa.RecordBatch:
    """The rows as Spark would hand them to a task: with the hash column."""
    digests = [hashlib.sha256(repr(row).encode()).digest() for row in rows]
    hashes = [int.from_bytes(digest[:8], "big", signed=True) for digest in digests]
    return pa.record_batch(
        {
            "value": pa.array([value.encode() for _, value in rows], pa.binary()),
            "key": pa.array([key.encode() for key, _ in rows], pa.binary()),
            HASH_COLUMN: pa.array(hashes, pa.int64()),
        }
    )


@dataclass
class Direct:
    """One pipeline: a topic, a prefix and a checkpoint; start it as often as it dies."""

    bootstrap: str
    folder: Path
    topic: str
    prefix: str = field(default_factory=lambda: f"d{uuid.uuid4().hex[:8]}")
    kafka_config: Mapping[str, Any] = field(default_factory=dict)
    sink_options: Mapping[str, Any] = field(default_factory=dict)
    plain_bootstrap: str = ""
    timeout: timedelta = timedelta(seconds=60)
    compression: str = "lz4"
    consumer_group: ConsumerGroup | None = None
    source: str = "in"
    """The topic that Spark's log names; nobody reads it."""

    def __post_init__(self) -> None:
        self.checkpoint = self.folder / "checkpoint"
        self.plain_bootstrap = self.plain_bootstrap or self.bootstrap
        self.batches: list[Frame] = []
        self.delivered = 0

    @property
    def sink(self) -> KafkaSink:
        return KafkaSink(
            bootstrap_servers=self.bootstrap,
            topic=self.topic,
            transactional_id_prefix=self.prefix,
            transaction_timeout=self.timeout,
            batch_within=self.timeout / 4,
            recover_within=self.timeout / 4,
            compression=self.compression,
            kafka_config=self.kafka_config,
            **self.sink_options,
        )

    @property
    def settings(self) -> KafkaSettings:
        return self.sink.settings

    @property
    def store(self) -> CheckpointStore:
        return CheckpointStore.open(self.checkpoint)

    @property
    def decisions(self) -> DecisionLog:
        return DecisionLog(self.store)

    def feed(self, *tasks: Sequence[Row]) -> None:
        """One more batch that the source holds; Spark plans it once, for ever."""
        self.batches.append(Frame(tasks))

    def feed_numbers(self, count: int, tasks: int = 3) -> None:
        """A batch of ``count`` rows dealt to ``tasks``, none like any other."""
        n = len(self.batches)
        rows = [(f"k{i % 17}", f"{self.prefix}:{n}:{i}") for i in range(count)]
        self.feed(*[rows[task::tasks] for task in range(tasks)])

    @contextmanager
    def started(self) -> Iterator[ExactlyOnceBatch]:
        """The driver's start, as ``start_exactly_once`` makes it, and its end."""
        with ExitStack() as resources:
            batch: Any = begun(
                SPARK,
                OneSink(self.sink),
                self.store,
                PULSE,
                consumer_group=self.consumer_group,
                resources=resources,
            )
            direct: Any = DirectSink(self.sink)
            planned = isinstance(batch._sink, InPlanSink)
            batch._sink = InPlanSink(direct) if planned else direct
            try:
                yield batch
            finally:
                forget_writers()

    def run(self) -> None:
        """Start, deliver every batch that Spark's log has no commit for, end."""
        with self.started() as batch:
            for number in range(self.delivered, len(self.batches)):
                self.deliver(batch, number)

    def deliver(self, batch: ExactlyOnceBatch, number: int) -> None:
        """One batch between ``offsets/N`` and ``commits/N``."""
        head = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": number, "conf": {}})
        self.store.put("metadata", json.dumps({"id": str(uuid.uuid4())}).encode())
        self.store.put(f"offsets/{number}", f"v1\n{head}\n{self.end_of(number)}".encode())
        batch(batch.streamed(self.batches[number]), number)  # type: ignore[arg-type]
        self.store.put(f"commits/{number}", b'v1\n{"nextBatchWatermarkMs":0}')
        self.delivered = number + 1

    def end_of(self, number: int) -> str:
        """Up to where the batch reads, as Spark's source says it."""
        return json.dumps({self.source: {"0": (number + 1) * 1000}})

    def visible(self) -> list[Row]:
        return read_topic(self.plain_bootstrap, self.topic)

    def open_transactions(self) -> list[str]:
        with ConnectionPool(
            KafkaSettings.from_librdkafka({"bootstrap.servers": self.plain_bootstrap})
        ) as wire:
            return [t.transactional_id for t in list_open(wire, self.prefix)]

    def assert_exactly_once(self) -> None:
        """Every row of every delivered batch is visible, once, and nothing is left open."""
        fed = [r for frame in self.batches[: self.delivered] for task in frame.tasks for r in task]
        expected, found = Counter(fed), Counter(self.visible())
        assert expected - found == Counter(), f"lost {(expected - found).total()} rows"
        assert found - expected == Counter(), f"duplicated {(found - expected).total()} rows"
        assert self.open_transactions() == []


def forget_writers() -> None:
    """What the end of a Python worker does to its warm writers."""
    for writer in sink_module._writers.values():
        cast("Any", writer)._wire.close()
    sink_module._writers.clear()


def wait_for(condition: Any, *, seconds: float = 300) -> Any:
    """The first true answer."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.05)
    return answer
