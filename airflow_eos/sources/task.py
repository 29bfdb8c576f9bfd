"""A task that fetches, decodes, transforms and writes: no row of it meets the JVM.

Memory is bounded by what is on its way: answers that were fetched ahead, the portion that is being
decoded, and what the sink's writer holds; each waits for the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_eos.errors import ConfigurationError
from airflow_eos.kafka.client.fetch import ahead
from airflow_eos.kafka.client.reading import OffsetSpan, read_span, what_is_left
from airflow_eos.kafka.records import kernels as loops
from airflow_eos.kafka.records.decode import tables

if TYPE_CHECKING:
    from airflow_eos.kafka.client.connection import Wire
    from airflow_eos.kafka.client.settings import KafkaSettings
    from airflow_eos.sinks.task import SinkTask

Batches = Iterator[pa.RecordBatch]
Transformation = Callable[[Batches], Batches]
"""As ``DataFrame.mapInArrow`` takes it: the batches of one task in, others out, of any size."""

FETCHED_AHEAD = 3
"""Answers of 4 MiB that wait, compressed, while one is decoded."""

TRANSFORMED_ROWS = 10_000
"""Rows that a transformation is given at a time, as many as ``mapInArrow`` gives unless told
otherwise. What is made of 40,000 leaves the processor's cache: JSON took a tenth longer."""


@dataclass(frozen=True)
class ReadRanges:
    """Ranges → their rows, transformed. It is pickled into every task.

    Attributes:
        settings: the connection.
        columns: of :data:`~airflow_eos.kafka.records.decode.SCHEMA`.
        transformations: one after the other.
        schema: what comes out of them.
        committed_only: leave out rows of open and aborted transactions.
        fail_on_data_loss: where rows of a range are gone; else they are left out.
    """

    settings: KafkaSettings
    columns: tuple[str, ...]
    transformations: tuple[Transformation, ...]
    schema: pa.Schema
    committed_only: bool = True
    fail_on_data_loss: bool = True

    def __call__(self, ranges: Batches) -> Batches:
        """The rows of the ranges, in the order of their offsets."""
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
                span = what_is_left(wire, span)
            answers = ahead(
                read_span(wire, span, committed_only=self.committed_only), FETCHED_AHEAD
            )
            for batches in answers:
                yield from tables(batches, span, self.columns)
        except BaseException:  # also where the task is left: fetches of it may be on their way
            _forget_wire(self.settings)
            raise


@dataclass(frozen=True)
class FusedTask:
    """Ranges → the reports of a sink's task.

    Attributes:
        read: gives the rows.
        prepared: brings them into the sink's columns, with their hashes.
        task: writes them.
    """

    read: ReadRanges
    prepared: Callable[[pa.RecordBatch], pa.RecordBatch]
    task: SinkTask

    def __call__(self, ranges: Batches) -> Batches:
        """Run the task."""
        return self.task(map(self.prepared, self.read(ranges)))


def pieces(batches: Batches, most: int) -> Batches:
    """The same rows, at most so many at a time; nothing is copied."""
    for batch in batches:
        for first in range(0, batch.num_rows, most):
            yield batch.slice(first, most)


def as_declared(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of ``schema``, in its order and types.

    Raises:
        ConfigurationError: one is missing, or its type cannot be had.
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
_wires: dict[KafkaSettings, Wire] = {}


def _warm_wire(settings: KafkaSettings) -> Wire:
    from airflow_eos.kafka.client.connection import Wire

    if settings not in _wires:
        _wires[settings] = Wire(settings)
    return _wires[settings]


def _forget_wire(settings: KafkaSettings) -> None:
    wire = _wires.pop(settings, None)
    if wire is not None:
        wire.close()
