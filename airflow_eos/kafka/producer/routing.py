"""Arrow rows → the topic partitions they go to, sorted so that each gets one slice of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from airflow_eos.errors import RowError
from airflow_eos.kafka.producer.partitioner import Partitioner, explicit_partitions
from airflow_eos.kafka.records.columns import Columns
from airflow_eos.kafka.records.views import INLINE_BYTES, Views

BATCH_OVERHEAD_BYTES = 64
"""The header of a record batch, rounded up."""


@dataclass(frozen=True, slots=True)
class Topic:
    """What a writer has to know of a topic. ``max_batch_bytes`` is its max.message.bytes."""

    name: str
    partitioner: Partitioner
    max_batch_bytes: int


@dataclass(frozen=True, slots=True)
class PartitionSlice:
    """Rows ``start`` to ``stop - 1`` of the sorted columns go to this partition."""

    topic: Topic
    partition: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Routed:
    """Rows sorted by where they go, each partition's in the order in which they came."""

    columns: Columns
    slices: tuple[PartitionSlice, ...]


def route(
    rows: pa.RecordBatch,
    columns: Columns,
    default_topic: str | None,
    topic: Callable[[str], Topic],
) -> Routed:
    """Choose a partition for each row, and sort the rows by it if there is more than one.

    Raises:
        RowError: a row names no topic, or a partition that its topic does not have.
        TopicError: a topic that some row names does not exist; nothing has been sent then.
    """
    names, topic_of_row = _topics(rows, default_topic)
    topics = [topic(name) for name in names]
    explicit = None
    if "partition" in rows.schema.names:
        explicit = explicit_partitions(rows.column("partition"))
    if len(topics) == 1:
        target = topics[0].partitioner.choose(columns.keys, explicit)
        firsts = [0]
    else:
        target, firsts = _across_topics(topics, topic_of_row, columns.keys, explicit)
    return _sorted(columns, target, topics, firsts)


def _topics(
    rows: pa.RecordBatch, default_topic: str | None
) -> tuple[list[str], NDArray[np.int64] | None]:
    """The topics that occur, and for each row which of them; None where there is just one."""
    if "topic" not in rows.schema.names:
        if default_topic is None:
            raise RowError("the rows have no column 'topic', and the sink names no topic: set one")
        return [default_topic], None
    column = rows.column("topic")
    if pa.types.is_null(column.type):
        column = column.cast(pa.string())
    if column.null_count:
        if default_topic is None:
            row = int(pc.index(column.is_null(), value=True).as_py())
            raise RowError(f"row {row} has no topic, and the sink names none: set one of them")
        column = column.fill_null(default_topic)
    encoded = column.dictionary_encode()
    names = [str(name) for name in encoded.dictionary.to_pylist()]
    return names, encoded.indices.to_numpy().astype(np.int64)


def _across_topics(
    topics: list[Topic],
    topic_of_row: NDArray[np.int64] | None,
    keys: Views,
    explicit: NDArray[np.int64] | None,
) -> tuple[NDArray[np.int64], list[int]]:
    """Targets numbered through all topics: those of topic ``i`` start at ``firsts[i]``."""
    target = np.zeros(len(keys), np.int64)
    firsts = [0]
    for number, topic in enumerate(topics):
        rows = np.flatnonzero(topic_of_row == number)
        given = None if explicit is None else explicit[rows]
        target[rows] = topic.partitioner.choose(keys.take(rows), given) + firsts[number]
        firsts.append(firsts[number] + topic.partitioner.partitions)
    return target, firsts


def _sorted(
    columns: Columns, target: NDArray[np.int64], topics: list[Topic], firsts: list[int]
) -> Routed:
    counts = np.bincount(target)
    used = np.flatnonzero(counts)
    if len(used) > 1:
        # Up to 16 bits numpy sorts by radix, 2 ns a row; stable: order within a partition holds.
        narrow = np.uint8 if len(counts) <= 1 << 8 else np.uint16
        fits = len(counts) <= 1 << 16
        columns = columns.take(np.argsort(target.astype(narrow) if fits else target, kind="stable"))
    slices = []
    start = 0
    for code in used:
        number = int(np.searchsorted(firsts, code, side="right")) - 1
        number = min(number, len(topics) - 1)
        stop = start + int(counts[code])
        slices.append(PartitionSlice(topics[number], int(code) - firsts[number], start, stop))
        start = stop
    return Routed(columns, tuple(slices))


def cut(
    part: PartitionSlice, ends: NDArray[np.uint64], run_bytes: int, ratio: float
) -> Iterator[tuple[int, int]]:
    """Cut a slice into even runs of at most about ``run_bytes``, uncompressed.

    ``ends[i]`` is the size of rows 0 to i - 1 together; ``ratio`` is to which part of their size
    rows are expected to be compressed. A run that exceeds the topic's limit nevertheless is halved
    later on.
    """
    before, after = int(ends[part.start]), int(ends[part.stop])
    most = run_bytes_of(part.topic, run_bytes, ratio)
    pieces = math.ceil((after - before) / most)
    if pieces == 1:
        yield part.start, part.stop
        return
    wanted = before + (after - before) * np.arange(1, pieces) // pieces
    inner = np.searchsorted(ends, wanted.astype(np.uint64), side="left")
    edges = np.unique(np.concatenate(([part.start], inner, [part.stop])))
    yield from itertools.pairwise(edges.tolist())


def run_bytes_of(topic: Topic, run_bytes: int, ratio: float) -> int:
    """What a run for the topic has at most, about; see :func:`cut`."""
    fits = int((topic.max_batch_bytes - BATCH_OVERHEAD_BYTES) / ratio)
    return max(min(run_bytes, fits), 1)


def describe_row(columns: Columns, row: int) -> Any:
    """A row's key for an error message: at most 60 bytes of it."""
    keys = columns.keys
    if keys.nulls is not None and keys.nulls[row]:
        return None
    word, place = int(keys.words[row, 0]), int(keys.words[row, 1])
    length = word & 0xFFFFFFFF
    if length <= INLINE_BYTES:
        key = keys.words[row].tobytes()[4 : 4 + length]
    else:
        start = place >> 32
        key = bytes(memoryview(keys.buffers[place & 0xFFFFFFFF])[start : start + length])
    return key if length <= 60 else key[:60] + b"..."
