"""Choice of each row's topic partition, as Kafka's Java producer chooses it, and sorting by it.

1. A row with a ``partition`` of its own goes there.
2. A row with a key goes to ``(murmur2(key) & 0x7fffffff) % partitions``: Java's
   ``BuiltInPartitioner.partitionForKey``, librdkafka's ``murmur2_random``. So all rows of a key
   share a partition and keep their order, whichever client writes. An empty key is a key.
3. Rows without a key go to one partition together, the next batch's to the next one: record
   batches stay large, and partitions fill evenly. Java's sticky partitioner has the same aim;
   the partition it picks is random, too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from airflow_eos.arrow.records.columns import INLINE_BYTES, U64, Columns, Views
from airflow_eos.kafka.columns import explicit_partitions, topics_of
from airflow_eos.kafka.destination import Topic

_M = np.uint32(0x5BD1E995)
_SEED = np.uint32(0x9747B28C)
_POSITIVE = np.uint32(0x7FFFFFFF)
_TAIL_MASK = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)
_LONG_KEY_BYTES = 1024
"""Longer keys are rare and hashed one by one: a loop over words pays only if many rows share it."""

U32Array = NDArray[np.uint32]


def choose(
    topic: Topic, keys: Views, explicit: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Return the partition of each row; ``explicit`` has -1 where a row names no partition.

    Raises:
        RowError: a row names a partition that the topic does not have.
    """
    if topic.partitions == 1 and explicit is None:
        return np.zeros(len(keys), np.int64)
    chosen = _by_key(topic, keys)
    if explicit is None:
        return chosen
    topic.require_partitions(explicit)
    return np.where(explicit >= 0, explicit, chosen)


def _by_key(topic: Topic, keys: Views) -> NDArray[np.int64]:
    if keys.nulls is not None and bool(keys.nulls.all()):
        return np.full(len(keys), next_turn(topic), np.int64)
    chosen = ((murmur2(keys) & _POSITIVE) % np.uint32(topic.partitions)).astype(np.int64)
    if keys.nulls is not None:
        chosen[keys.nulls] = next_turn(topic)
    return chosen


def next_turn(topic: Topic) -> int:
    """Return the partition of the next rows without a key."""
    return next(topic.turns) % topic.partitions


def murmur2(keys: Views) -> U32Array:
    """Return ``org.apache.kafka.common.utils.Utils.murmur2`` of each key (a null is as empty)."""
    lengths = keys.lengths.astype(np.int64)
    if len(keys) and int(lengths.min()) == int(lengths.max()):
        return _of_sorted(keys.words, lengths, keys.buffers)
    # Short rows first, so that the rows that have an i-th word are the end of the array.
    order = np.argsort(np.minimum(lengths, 0xFFFF).astype(np.uint16), kind="stable")
    out = np.empty(len(keys), np.uint32)
    out[order] = _of_sorted(keys.words.take(order, axis=0), lengths[order], keys.buffers)
    return out


def murmur2_of(key: bytes) -> int:
    """Return the hash of one key, as Java does it: the fast path is tested against this."""
    m, mask = int(_M), 0xFFFFFFFF
    h = int(_SEED) ^ len(key)
    whole = len(key) & ~3
    for start in range(0, whole, 4):
        k = int.from_bytes(key[start : start + 4], "little") * m & mask
        k = (k ^ (k >> 24)) * m & mask
        h = (h * m & mask) ^ k
    if whole < len(key):
        h = (h ^ int.from_bytes(key[whole:], "little")) * m & mask
    h = (h ^ (h >> 13)) * m & mask
    return h ^ (h >> 15)


def _of_sorted(
    words: NDArray[np.uint64], lengths: NDArray[np.int64], buffers: tuple[Any, ...]
) -> U32Array:
    """Return the hashes of keys that are sorted by length."""
    short = int(np.searchsorted(lengths, INLINE_BYTES, side="right"))
    parts = [_of_inline(words[:short], lengths[:short])]
    if short < len(lengths):
        parts.append(_of_buffers(words[short:], lengths[short:], buffers))
    return np.concatenate(parts)


def _of_inline(words: NDArray[np.uint64], lengths: NDArray[np.int64]) -> U32Array:
    """Return the hashes of keys of up to 12 bytes, which are in the views themselves."""
    quarters = words.view(np.uint32)  # of each row: the length, then up to three words
    return _hashed(
        lengths,
        lambda start, word: quarters[start:, 1 + word],
        lambda: quarters[np.arange(len(quarters)), np.minimum(1 + (lengths >> 2), 3)],
    )


def _of_buffers(
    words: NDArray[np.uint64], lengths: NDArray[np.int64], buffers: tuple[Any, ...]
) -> U32Array:
    """Return the hashes of longer keys, which are in the buffers that their views name."""
    out = np.empty(len(words), np.uint32)
    numbers = words[:, 1] & U64(0xFFFFFFFF)
    starts = (words[:, 1] >> U64(32)).astype(np.int64)
    usual = lengths <= _LONG_KEY_BYTES
    for number, buffer in enumerate(buffers):
        here = numbers == U64(number)
        rows = np.flatnonzero(here & usual)
        if len(rows) == len(words):
            return _of_buffer(buffer, starts, lengths)
        if len(rows):
            out[rows] = _of_buffer(buffer, starts[rows], lengths[rows])
        content = memoryview(buffer)
        for row in np.flatnonzero(here & ~usual):
            start, length = int(starts[row]), int(lengths[row])
            out[row] = murmur2_of(bytes(content[start : start + length]))
    return out


def _of_buffer(buffer: Any, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> U32Array:
    # The four bytes from every byte on: unaligned, overlapping, not copied. The buffer has a key of
    # 13 bytes at least.
    last = buffer.size - 4
    quads = np.ndarray((last + 1,), "<u4", buffer=memoryview(buffer), strides=(1,))
    at = starts + (lengths & ~3)
    # Where a tail's four bytes would pass the buffer's end, read its last four and shift off those
    # before the tail.
    inside = np.minimum(at, last)
    foreign = np.minimum(at - inside, 3).astype(np.uint32) << np.uint32(3)
    return _hashed(
        lengths,
        lambda start, word: quads[starts[start:] + 4 * word],
        lambda: quads[inside] >> foreign,
    )


def _hashed(
    lengths: NDArray[np.int64],
    load: Callable[[int, int], U32Array],
    tails: Callable[[], U32Array],
) -> U32Array:
    """Return the hashes of rows that are sorted by length.

    ``load(i, word)`` returns, for each row from the i-th on, its ``word``-th four bytes, little
    endian. ``tails`` returns each row's last one to three bytes; bytes after them are ignored.
    """
    h: U32Array = _SEED ^ lengths.astype(np.uint32)
    for word in range(int(lengths.max(initial=0)) // 4):
        start = int(np.searchsorted(lengths, 4 * word + 4))
        k = load(start, word) * _M
        k ^= k >> np.uint32(24)
        k *= _M
        h[start:] *= _M
        h[start:] ^= k
    rest = lengths & 3
    if rest.any():
        h = np.where(rest > 0, (h ^ (tails() & _TAIL_MASK[rest])) * _M, h)
    h ^= h >> np.uint32(13)
    h *= _M
    h ^= h >> np.uint32(15)
    return h


# --- routing --------------------------------------------------------------------------------------
# Arrow rows → the topic partitions they go to, sorted so that each gets one slice of them.


BATCH_OVERHEAD_BYTES = 64
"""Bytes of a record batch's header, rounded up."""


@dataclass(frozen=True, slots=True)
class PartitionSlice:
    """A partition, and the rows that go to it: ``start`` to ``stop - 1`` of the sorted columns."""

    topic: Topic
    partition: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Routed:
    """Rows sorted by topic partition; within a partition they are in their original order."""

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
        TopicError: a topic that some row names does not exist; no row has been sent then.
    """
    names, topic_of_row = topics_of(rows, default_topic)
    topics = [topic(name) for name in names]
    explicit = None
    if "partition" in rows.schema.names:
        explicit = explicit_partitions(rows.column("partition"))
    if len(topics) == 1:
        target = choose(topics[0], columns.keys, explicit)
        firsts = [0]
    else:
        target, firsts = _across_topics(topics, topic_of_row, columns.keys, explicit)
    return _sorted(columns, target, topics, firsts)


def _across_topics(
    topics: list[Topic],
    topic_of_row: NDArray[np.int64] | None,
    keys: Views,
    explicit: NDArray[np.int64] | None,
) -> tuple[NDArray[np.int64], list[int]]:
    """Choose partitions, numbered through all topics: those of topic i start at ``firsts[i]``."""
    target = np.zeros(len(keys), np.int64)
    firsts = [0]
    for number, topic in enumerate(topics):
        rows = np.flatnonzero(topic_of_row == number)
        given = None if explicit is None else explicit[rows]
        target[rows] = choose(topic, keys.take(rows), given) + firsts[number]
        firsts.append(firsts[number] + topic.partitions)
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

    ``ends[i]`` is the size of rows 0 to i - 1 together; ``ratio`` is the expected compressed size
    by uncompressed size. A run that exceeds the topic's limit nevertheless is halved later on.
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
    """Return about the most bytes, uncompressed, of a run for the topic; see :func:`cut`."""
    fits = int((topic.max_batch_bytes - BATCH_OVERHEAD_BYTES) / ratio)
    return max(min(run_bytes, fits), 1)


def describe_row(columns: Columns, row: int) -> Any:
    """Return a row's key, at most 60 bytes of it, for an error message; None for a null."""
    keys = columns.keys
    if keys.nulls is not None and keys.nulls[row]:
        return None
    word, packed = int(keys.words[row, 0]), int(keys.words[row, 1])
    length = word & 0xFFFFFFFF
    if length <= INLINE_BYTES:
        key = keys.words[row].tobytes()[4 : 4 + length]
    else:
        start = packed >> 32
        key = bytes(memoryview(keys.buffers[packed & 0xFFFFFFFF])[start : start + length])
    return key if length <= 60 else key[:60] + b"..."
