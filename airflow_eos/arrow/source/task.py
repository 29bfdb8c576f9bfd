"""A task that fetches, decodes, transforms and writes, without any row in the JVM.

Memory is bounded by the data on its way: answers fetched ahead, the portion that is being decoded,
and the rows that the sink's writer holds; each waits for the next.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_eos.arrow.records import kernels as loops
from airflow_eos.arrow.records.decode import tables
from airflow_eos.core.checkpoint.spark_log import parse_kafka_start
from airflow_eos.core.checkpoint.topics import TopicPartition
from airflow_eos.errors import ConfigurationError
from airflow_eos.kafka.client.fetch import ahead
from airflow_eos.kafka.client.offsets import EARLIEST, LATEST, partitions_of, positions
from airflow_eos.kafka.client.reading import OffsetSpan, clip_to_log_start, read_span

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint.store import CheckpointStore
    from airflow_eos.core.delivery.task import SinkTask
    from airflow_eos.kafka.client.connection import ConnectionPool
    from airflow_eos.kafka.client.settings import KafkaSettings

Batches = Iterator[pa.RecordBatch]
Transformation = Callable[[Batches], Batches]
"""As ``DataFrame.mapInArrow`` takes it: the batches of one task in, others out, of any size."""

FETCHED_AHEAD = 3
"""Compressed answers of 4 MiB that may wait while one is decoded."""

TRANSFORMED_ROWS = 10_000
"""Rows that a transformation is given at a time, as many as ``mapInArrow`` gives unless configured
otherwise. The results of 40,000 leave the processor's cache: JSON took a tenth longer."""


@dataclass(frozen=True)
class ReadRanges:
    """A function from offset ranges to their rows, transformed; pickled into every task.

    Attributes:
        settings: the connection.
        columns: the columns to decode, of :data:`~airflow_eos.arrow.records.decode.SCHEMA`.
        transformations: functions applied one after the other.
        schema: the schema of the rows that come out.
        committed_only: leave out rows of open and aborted transactions.
        fail_on_data_loss: raise where rows of a range are gone; else they are left out.
    """

    settings: KafkaSettings
    columns: tuple[str, ...]
    transformations: tuple[Transformation, ...]
    schema: pa.Schema
    committed_only: bool = True
    fail_on_data_loss: bool = True

    def __call__(self, ranges: Batches) -> Batches:
        """Yield the rows of the ranges, in the order of their offsets."""
        loops.warm()
        rows: Batches = self._rows(ranges)
        if self.transformations:
            rows = pieces(rows, TRANSFORMED_ROWS)
        for transformation in self.transformations:
            rows = iter(transformation(rows))
        for batch in rows:
            yield as_declared(batch, self.schema)

    def _rows(self, ranges: Batches) -> Batches:
        for batch in ranges:
            for row in batch.to_pylist():
                span = OffsetSpan(row["topic"], row["partition"], row["from"], row["until"])
                yield from self._of(span)

    def _of(self, span: OffsetSpan) -> Batches:
        try:
            wire = _warm_wire(self.settings)
            if not self.fail_on_data_loss:
                span = clip_to_log_start(wire, span)
            answers = ahead(
                read_span(wire, span, committed_only=self.committed_only), FETCHED_AHEAD
            )
            for batches in answers:
                yield from tables(batches, span, self.columns)
        except BaseException:  # also where the task is left: its fetches may be on their way
            if (kept := _wires.pop(self.settings, None)) is not None:
                kept.close()
            raise


@dataclass(frozen=True)
class FusedTask:
    """A function from offset ranges to the reports of a sink's task.

    Attributes:
        read: gives the rows.
        prepared: brings the rows into the sink's columns, with their hashes.
        task: writes the rows.
    """

    read: ReadRanges
    prepared: Callable[[pa.RecordBatch], pa.RecordBatch]
    task: SinkTask

    def __call__(self, ranges: Batches) -> Batches:
        """Run the sink's task on the rows of ``ranges``; yield its reports."""
        return self.task(map(self.prepared, self.read(ranges)))


def pieces(batches: Batches, most: int) -> Batches:
    """Yield the rows of ``batches``, at most ``most`` at a time; nothing is copied."""
    for batch in batches:
        for first in range(0, batch.num_rows, most):
            yield batch.slice(first, most)


def as_declared(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of ``schema`` from a batch, in its order and types.

    Raises:
        ConfigurationError: a column is missing, or cannot be cast to its type.
    """
    if batch.schema.equals(schema):
        return batch
    found = batch.schema
    try:
        columns = [batch.column(field.name).cast(field.type) for field in schema]
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    except (KeyError, pa.ArrowException) as error:
        raise ConfigurationError(
            f"The transformation gave {dict(zip(found.names, map(str, found.types), strict=True))};"
            f" expected {dict(zip(schema.names, map(str, schema.types), strict=True))} ({error}). "
            "Correct it, or the schema that map() was given."
        ) from error


# Spark keeps workers between batches, so connections and metadata stay warm.
_wires: dict[KafkaSettings, ConnectionPool] = {}


def _warm_wire(settings: KafkaSettings) -> ConnectionPool:
    from airflow_eos.kafka.client.connection import ConnectionPool

    if settings not in _wires:
        _wires[settings] = ConnectionPool(settings)
    return _wires[settings]


Offset = dict[str, dict[str, int]]
"""Topic → partition → next offset, as JSON has it, so partitions are text."""


def offset_of(partitions: Mapping[TopicPartition, int]) -> Offset:
    """Return the stream's offset, in an order that never changes: Spark compares text."""
    found: Offset = {}
    for (topic, partition), offset in sorted(partitions.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


BEGAN = "sources/0/0"
"""The file where Spark's own Kafka source notes its start (``KafkaSourceInitialOffsetWriter``)."""


@dataclass(frozen=True)
class KafkaInput:
    """The input of an :class:`~airflow_eos.sources.ArrowKafkaSource`, for planning batches.

    Attributes:
        store: the checkpoint, which remembers where the first batch begins.
        starting: ``earliest``, ``latest``, ms since the epoch, or topic → partition → offset, where
            -2 is the first row and -1 the next one.
        skipped: offsets that a person has ruled to step over: no task reads them, also where a
            batch is read again.
        leaves_out: whether rows and partitions that are gone are left out.
    """

    settings: KafkaSettings
    topics: tuple[str, ...]
    store: CheckpointStore
    starting: str | int | Mapping[str, Mapping[str, int]] = "earliest"
    max_rows_per_batch: int | None = None
    max_rows_per_task: int | None = None
    committed_only: bool = True
    max_tasks: int | None = None
    skipped: tuple[OffsetSpan, ...] = ()
    leaves_out: bool = False

    def ends(self, wire: ConnectionPool) -> dict[TopicPartition, int]:
        """Return how far each partition that there is now may be read."""
        partitions = partitions_of(wire, self.topics, refresh=True)
        return positions(wire, partitions, LATEST, committed_only=self.committed_only)

    def not_before(
        self,
        wire: ConnectionPool,
        ends: Mapping[TopicPartition, int],
        begun: Mapping[TopicPartition, int],
    ) -> dict[TopicPartition, int]:
        """Return ``ends``, but none before ``begun`` where the rows up to there exist.

        A reader of rows of open transactions (Spark's own source is one, unless told otherwise) is
        past the last stable offset. New rows for a reader of committed rows begin where it stopped.
        """
        behind = [tp for tp, end in ends.items() if end < begun.get(tp, 0)]
        if not behind or not self.committed_only:
            return dict(ends)
        there = positions(wire, behind, LATEST, committed_only=False)
        return dict(ends) | {p: begun[p] for p, end in there.items() if begun[p] <= end}

    def began(self, wire: ConnectionPool) -> Offset:
        """Return where the first batch begins, as noted in the checkpoint; the first call notes it.

        Kafka is not asked again: "latest" is another place by then, and a batch that was planned
        before a crash would begin elsewhere.
        """
        noted = self.store.get(BEGAN)
        if noted is None:
            found = json.dumps(self._first(wire), separators=(",", ":"))
            self.store.create(BEGAN, b"\0v1\n" + found.encode())
            noted = self.store.get(BEGAN) or b""
        begun = parse_kafka_start(noted, f"{self.store.location}/{BEGAN}")
        return offset_of(
            {(t, p): offset for t, all_ in begun.items() for p, offset in all_.items()}
        )

    def _first(self, wire: ConnectionPool) -> Offset:
        partitions = partitions_of(wire, self.topics)
        if isinstance(self.starting, Mapping):
            return offset_of(self._given(wire, partitions, self.starting))
        if isinstance(self.starting, str):
            when = EARLIEST if self.starting == "earliest" else LATEST
            found = positions(wire, partitions, when, committed_only=self.committed_only)
        else:
            found = positions(wire, partitions, self.starting, committed_only=self.committed_only)
            later = [tp for tp, offset in found.items() if offset < 0]
            found |= positions(wire, later, LATEST, committed_only=self.committed_only)
        return offset_of(found)

    def _given(
        self,
        wire: ConnectionPool,
        partitions: list[TopicPartition],
        given: Mapping[str, Mapping[str, int]],
    ) -> dict[TopicPartition, int]:
        told = {(t, int(p)): int(offset) for t, all_ in given.items() for p, offset in all_.items()}
        if told.keys() != set(partitions):
            raise ConfigurationError(
                f"starting names the partitions {sorted(told)}; expected each that there is, and "
                f"no others: {partitions}."
            )
        for when in (EARLIEST, LATEST):
            asked = [tp for tp, offset in told.items() if offset == when]
            told |= positions(wire, asked, when, committed_only=self.committed_only)
        return told


_STARTS = (
    'expected earliest, latest, a StartPosition, or JSON such as {"orders": {"0": 1500, "1": -2}} '
    "(-2: the first row, -1: the next one)."
)


def starting_of(position: Any, topics: tuple[str, ...]) -> str | int | dict[str, dict[str, int]]:
    """Return a user's ``starting`` in one of three forms.

    Args:
        position: a :class:`~airflow_eos.sinks.StartPosition`, or the text of Spark's option
            ``startingOffsets``.
        topics: the topics of the source.

    Raises:
        ConfigurationError: offsets by partition alone, for several topics; or another form.
    """
    if isinstance(position, str):
        if position in ("earliest", "latest"):
            return position
        try:
            told = json.loads(position)
            return {
                t: {str(int(p)): _offset(offset) for p, offset in all_.items()}
                for t, all_ in told.items()
            }
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigurationError(f"starting {position!r}: {_STARTS}") from error
    if not hasattr(position, "by_partition"):
        raise ConfigurationError(f"starting {position!r}: {_STARTS}")
    if position.timestamp_ms is not None:
        return int(position.timestamp_ms)
    if position.by_partition is not None:
        if len(topics) > 1:
            raise ConfigurationError(
                f"starting gives offsets by partition for {len(topics)} topics: give them as JSON, "
                'topic → partition → offset ({"orders": {"0": 1500}}).'
            )
        return {topics[0]: {str(p): offset for p, offset in position.by_partition.items()}}
    return str(position.name)


def _offset(given: Any) -> int:
    """Return the offset; refuse a wrong one before it is noted in the checkpoint for ever."""
    if int(given) < EARLIEST:
        raise ValueError(given)
    return int(given)
