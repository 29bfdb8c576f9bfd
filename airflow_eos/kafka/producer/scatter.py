"""Plain rows to record batches by the compiled loops, in the order in which they come.

What :mod:`.batches` makes of sorted rows, byte by byte, for rows that have a key and a value, no
null and nothing else, and go to one topic: the usual case. All others go the other way.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from airflow_eos.kafka.producer.batches import (
    RUN_BYTES,
    BatchBuilder,
    Encoded,
    Ratios,
    surely_fits,
)
from airflow_eos.kafka.producer.routing import PartitionSlice, route, run_bytes_of
from airflow_eos.kafka.records import loops
from airflow_eos.kafka.records.batch import Run
from airflow_eos.kafka.records.columns import FRAME_BYTES, columns_of

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from airflow_eos.kafka.producer.routing import Topic
    from airflow_eos.kafka.producer.topics import Topics
    from airflow_eos.kafka.records.columns import Columns
    from airflow_eos.kafka.records.compression import Codec


_MOST_BYTES = 64 * 1024 * 1024
"""All are encoded at once here; of more, the other way has a part in memory at a time."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Rows, and where each of them goes.

    Attributes:
        pieces: of each Arrow batch: key offsets, keys, value offsets, values, the rows' partitions.
        sizes: bytes of each partition, an upper bound.
        counts: rows of each partition.
        largest: bytes of a row, at most.
    """

    pieces: list[tuple[Any, Any, Any, Any, NDArray[np.uint32]]]
    sizes: NDArray[np.int64]
    counts: NDArray[np.int64]
    largest: int


def scatter_builder(
    gathered: Sequence[pa.RecordBatch], topic: str | None, topics: Topics, codec: Codec
) -> BatchBuilder | None:
    """What builds the batches of these rows; None where they have to go the other way.

    Raises:
        TopicError: the topic does not exist.
    """
    if topic is None or not loops.are_loaded() or not all(map(_is_plain, gathered)):
        return None
    found = topics.look_up(topic)
    placed = _placed(gathered, found.partitioner.partitions)
    if placed.sizes.sum() > _MOST_BYTES or placed.largest > surely_fits(found):
        return None
    return ScatterBuilder(gathered, placed, found, codec)


def _is_plain(rows: pa.RecordBatch) -> bool:
    return sorted(rows.schema.names) == ["key", "value"] and all(
        (pa.types.is_binary(column.type) or pa.types.is_string(column.type))
        and column.null_count == 0
        for column in rows.columns
    )


def _placed(gathered: Sequence[pa.RecordBatch], partitions: int) -> Placed:
    sizes, counts = np.zeros(partitions, np.int64), np.zeros(partitions, np.int64)
    pieces, largest = [], 0
    for rows in gathered:
        columns = *_bytes_of(rows.column("key")), *_bytes_of(rows.column("value"))
        targets = np.empty(rows.num_rows, np.uint32)
        size = loops.placed(*columns[:3], FRAME_BYTES, targets, sizes, counts)
        pieces.append((*columns, targets))
        largest = max(largest, size)
    return Placed(pieces, sizes, counts, largest)


def _bytes_of(column: Any) -> tuple[Any, Any]:
    """Where each begins, and their bytes."""
    _, edges, content = column.buffers()
    offsets = np.frombuffer(edges, np.int32)[column.offset : column.offset + len(column) + 1]
    data = np.frombuffer(content, np.uint8) if content is not None else np.zeros(0, np.uint8)
    # As the compiled loops were compiled for: they would be compiled again for what can be written.
    offsets.flags.writeable = data.flags.writeable = False
    return offsets, data


class ScatterBuilder(BatchBuilder):
    """See :class:`BatchBuilder`; the sorted rows are made where a record batch has to be halved."""

    def __init__(
        self, gathered: Sequence[pa.RecordBatch], placed: Placed, topic: Topic, codec: Codec
    ) -> None:
        # Not the base's: its columns are made where they are asked for.
        self._gathered = gathered
        self._placed = placed
        self._topic = topic
        self._codec = codec
        self._now_ms = time.time_ns() // 1_000_000

    @cached_property
    def _columns(self) -> Columns:  # type: ignore[override]
        rows = pa.concat_batches(self._gathered)
        columns = columns_of(rows, now_ms=self._now_ms)
        return route(rows, columns, self._topic.name, lambda _: self._topic).columns

    def _encoded(self, ratios: Ratios, beside: Executor) -> Iterator[list[Encoded]]:
        group: list[Encoded] = []
        size = 0
        for part, start, run in self._runs(ratios.expected(self._topic.name)):
            if group and size + len(run.body) > RUN_BYTES:
                yield group
                group, size = [], 0
            group.append(Encoded(part, start, run, beside.submit(self._codec.compress, run.body)))
            size += len(run.body)
        if group:
            yield group

    def _runs(self, ratio: float) -> Iterator[tuple[PartitionSlice, int, Run]]:
        """Each with its partition, and its first row among the sorted ones."""
        placed, most = self._placed, run_bytes_of(self._topic, RUN_BYTES, ratio)
        cuts = -(-placed.sizes // most)
        content, runs = loops.scattered(placed.pieces, placed.sizes, cuts, FRAME_BYTES)
        at, first = iter(runs.T.tolist()), 0
        for partition, (rows, its) in enumerate(zip(placed.counts.tolist(), cuts, strict=True)):
            part = PartitionSlice(self._topic, partition, first, first + rows)
            for start, end, count in itertools.islice(at, int(its)):
                if count:
                    body = content[start:end]
                    yield part, first, Run(body, count, self._now_ms, self._now_ms)
                first += count
