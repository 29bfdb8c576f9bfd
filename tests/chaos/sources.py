"""What reads the input of a history: Spark's Kafka source in small, or the product's own.

The first deals rows out here, in the driver, and its input is files. The second is
``ArrowKafkaSource`` whole, over a topic: its planner is called as Spark calls it, and the reader
that it gives for the tasks travels into our workers, which fetch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from pyspark import cloudpickle
from pyspark.sql.datasource import InputPartition

from airflow_eos.arrow.source.stream import RangeReader, RangeStream
from airflow_eos.arrow.source.task import KafkaInput, ReadRanges
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.columns import SCHEMA
from tests.chaos.frame import Frame, Query, Tasks
from tests.chaos.settings import ARROW, DriverSettings
from tests.chaos.spark_data import Input, Offset, Row, StateStore, ends_of
from tests.chaos.spark_loop import PlannedBatch, Planner, write_unless_there
from tests.chaos.workers import WorkerPool

_COLUMNS = ("key", "value")
_DEALT = "dealt"


class Source(Planner, Protocol):
    """Plans what batches range over, and gives what the query makes of one."""

    def frame(self, pool: WorkerPool, batch: PlannedBatch) -> Frame: ...


def source_of(settings: DriverSettings) -> Source:
    """As the driver is told."""
    if settings.source == ARROW:
        return ArrowSource(settings)
    return FileSource(settings)


class FileSource:
    """Spark's Kafka source in small, and the query behind it.

    A batch has ``batch_rows`` of each partition at most. Each evaluation is one that state suffers.
    """

    def __init__(self, settings: DriverSettings) -> None:
        self._input = Input(Path(settings.folder), settings.partitions)
        self._checkpoint = Path(settings.checkpoint)
        self._state = StateStore(self._checkpoint)
        self._query = Query(settings.kind, settings.width, settings.turn)
        self._topic = settings.input_topic
        self._partitions = settings.partitions
        self._most = settings.batch_rows

    def initial(self) -> Offset:
        start = {self._topic: {str(p): 0 for p in range(self._partitions)}}
        write_unless_there(self._checkpoint, "sources/0/0", f"\0v1\n{json.dumps(start)}")
        return start

    def latest(self, start: Offset) -> Offset:
        there = self._input.ends()
        ends = {str(p): min(there[p], at + self._most) for p, at in ends_of(start).items()}
        return {self._topic: ends}

    def frame(self, pool: WorkerPool, batch: PlannedBatch) -> Frame:
        starts, ends = ends_of(batch.start), ends_of(batch.end)

        def evaluate() -> Tasks:
            read = [self._input.rows(p, starts[p], ends[p]) for p in sorted(ends)]
            return self._query.tasks(batch.number, read, self._state)

        return Frame(pool, evaluate)


class ArrowSource:
    """``ArrowKafkaSource``: a copy of the rows, whose tasks fetch them themselves.

    A batch has ``batch_rows`` times the partitions, shared out by what each has. Where the scenario
    is ``split``, ``width`` tasks share a full range; where it is ``dealt``, ``width`` tasks read
    all ranges. Each start may have another width: a batch that runs again has the tasks it had.
    """

    def __init__(self, settings: DriverSettings) -> None:
        kafka = KafkaSettings.from_librdkafka({"bootstrap.servers": settings.bootstrap})
        each = -(-settings.batch_rows // settings.width)
        read = KafkaInput(
            kafka,
            (settings.input_topic,),
            settings.store(),
            max_rows_per_batch=settings.batch_rows * settings.partitions,
            max_rows_per_task=each if settings.kind == "split" else None,
            max_tasks=settings.width if settings.kind == _DEALT else None,
        )
        schema = SCHEMA.empty_table().select(_COLUMNS).schema
        packed = cloudpickle.dumps(ReadRanges(kafka, _COLUMNS, (), schema))
        self._stream = RangeStream(read, packed)

    def initial(self) -> Offset:
        return self._stream.initialOffset()

    def latest(self, start: Offset) -> Offset:
        return self._stream.latestOffset(start, self._stream.getDefaultReadLimit())

    def frame(self, pool: WorkerPool, batch: PlannedBatch) -> Frame:
        planned = self._stream.partitions(batch.start, batch.end)
        return RangeFrame(pool, [Fetched(self._stream, each) for each in planned])


@dataclass(frozen=True)
class Fetched:
    """The rows of a task, each time somebody asks. Pickled, the planner leaves its reader alone."""

    reader: RangeReader
    ranges: InputPartition

    def __iter__(self) -> Iterator[Row]:
        for batch in self.reader.read(self.ranges):
            keys, values = (batch.column(name).to_pylist() for name in _COLUMNS)
            yield from zip(keys, values, strict=True)


class RangeFrame(Frame):
    """Its rows are nowhere until a task fetches them."""

    def __init__(self, pool: WorkerPool, fetched: list[Fetched]) -> None:
        super().__init__(pool, partial(_all, fetched))
        self._fetched = fetched

    def handed_out(self) -> Sequence[Iterable[Row]]:
        return self.tasks() if self._keeps else self._fetched


def _all(fetched: list[Fetched]) -> Tasks:
    return [list(each) for each in fetched]
