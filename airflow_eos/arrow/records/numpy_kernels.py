"""NumPy loops over records: where each field is, copies of fields, and row hashes.

Records follow each other by their lengths alone, so a Python loop finds where they begin; all other
work is done for whole columns. This needs only numpy, and tests compare
:mod:`~airflow_eos.arrow.records.numba_kernels` with it.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from airflow_eos.arrow.records.layout import I64, MOST_HEADERS, Garbled, Spans, Unpacked

_LONGEST = 10
"""Most bytes of a varlong."""


def spans_of(unpacked: Unpacked) -> Spans:
    """Return where the fields of all records are.

    Raises:
        Garbled: a record ends behind its batch, or a field behind its record.
    """
    counts = unpacked.counts
    starts, ends = _records(unpacked)
    batch = np.repeat(np.arange(len(counts)), counts)
    data = np.concatenate((unpacked.data, np.zeros(_LONGEST, np.uint8)))
    look = _FieldReader(data, starts + 1, ends, batch)  # behind the attributes of a record
    elapsed, delta = look.varint(), look.varint()
    keys, key_lengths = look.field()
    values, value_lengths = look.field()
    header_counts = look.varint()
    # A header has two bytes or more: an impossible count is refused before arrays are made for it.
    most = np.minimum((ends - look.at) // 2, MOST_HEADERS)
    _require((header_counts >= 0) & (header_counts <= most), batch)
    _require((header_counts > 0) | (look.at == ends), batch)
    for row in np.flatnonzero(header_counts).tolist():
        _headers_of(data.data, *(int(each[row]) for each in (look.at, ends, header_counts, batch)))
    based, base_times = unpacked.base_offsets[batch], unpacked.base_times[batch]
    last, times = unpacked.last_offsets[batch], base_times + elapsed
    _require((delta >= 0) & (delta <= last - based), batch)
    _require((np.diff(batch, prepend=-1) != 0) | (np.diff(delta, prepend=-1) > 0), batch)
    _require((elapsed == 0) | ((times > base_times) == (elapsed > 0)), batch)
    stamped = unpacked.append_times[batch]
    return Spans(
        based + delta,
        np.where(stamped >= 0, stamped, times),
        keys,
        key_lengths,
        values,
        value_lengths,
        look.at,
        header_counts,
    )


def _records(unpacked: Unpacked) -> tuple[I64, I64]:
    """Return where each record begins (behind its length) and ends."""
    data: memoryview = unpacked.data.data
    starts, ends = array("q"), array("q")  # Python's ints would be five times as large
    for batch, count in enumerate(unpacked.counts.tolist()):
        position, end = (int(each) for each in unpacked.starts[batch : batch + 2])
        for _ in range(count):
            number = shift = 0
            byte = 0x80
            while byte & 0x80:
                if position >= end or shift > 28:
                    raise Garbled(batch)
                byte = data[position]
                number |= (byte & 0x7F) << shift
                shift += 7
                position += 1
            starts.append(position)
            position += (number >> 1) ^ -(number & 1)
            if not starts[-1] < position <= end:
                raise Garbled(batch)
            ends.append(position)
        if position != end:
            raise Garbled(batch)
    return np.frombuffer(starts, np.int64), np.frombuffer(ends, np.int64)


class _FieldReader:
    """Reader of all records' fields: each call reads the next field of every record."""

    def __init__(self, data: NDArray[np.uint8], at: I64, ends: I64, batch: I64) -> None:
        self.at = at
        self._data = data
        self._ends = ends
        self._batch = batch

    def varint(self) -> I64:
        """Read a zigzag varint of every record."""
        number = np.zeros(len(self.at), np.uint64)
        at, more = self.at.copy(), np.ones(len(self.at), np.bool_)
        for index in range(_LONGEST):
            byte = np.where(more, self._data[np.minimum(at, len(self._data) - 1)], 0)
            number |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * index)
            at += more
            more = byte >= 0x80
            if not more.any():
                break
        _require(~more & (at <= self._ends), self._batch)
        self.at = at
        return ((number >> np.uint64(1)) ^ -(number & np.uint64(1))).astype(np.int64)

    def field(self) -> tuple[I64, I64]:
        """Read a byte field of every record: where it begins, and its length, -1 for a null."""
        lengths = self.varint()
        starts = self.at
        taken = np.maximum(lengths, 0)
        _require((lengths >= -1) & (taken <= self._ends - starts), self._batch)
        self.at = starts + taken
        return starts, lengths


def _require(holds: Any, batch: I64) -> None:
    if not holds.all():
        raise Garbled(int(batch[np.argmin(holds)]))


def header_spans_of(unpacked: Unpacked, spans: Spans) -> tuple[I64, I64, I64, I64]:
    """Return place and length of the name, and of the value, of all headers, row after row.

    A plain loop: rows with headers are rare. :func:`spans_of` has checked them.
    """
    data: memoryview = unpacked.data.data
    found: list[tuple[int, int, int, int]] = []
    for at, count in zip(spans.headers.tolist(), spans.header_counts.tolist(), strict=True):
        found += _headers_of(data, at, None, count, 0)
    columns = np.array(found, np.int64).reshape(-1, 4)
    return columns[:, 0], columns[:, 1], columns[:, 2], columns[:, 3]


def _headers_of(
    data: memoryview, at: int, end: int | None, count: int, batch: int
) -> list[tuple[int, int, int, int]]:
    """Read the headers of one row, which end at ``end`` (None: that was checked before)."""
    found, last = [], len(data) if end is None else end
    for _ in range(count):
        name, name_length, at = _header_field(data, at, last, batch)
        if name_length < 0:
            raise Garbled(batch)
        value, value_length, at = _header_field(data, at, last, batch)
        found.append((name, name_length, value, value_length))
    if end is not None and at != end:
        raise Garbled(batch)
    return found


def _header_field(data: memoryview, at: int, end: int, batch: int) -> tuple[int, int, int]:
    number = shift = 0
    byte = 0x80
    while byte & 0x80:
        if at >= end or shift > 28:
            raise Garbled(batch)
        byte = data[at]
        number |= (byte & 0x7F) << shift
        shift += 7
        at += 1
    length = (number >> 1) ^ -(number & 1)
    if length < -1 or at + max(length, 0) > end:
        raise Garbled(batch)
    return at, length, at + max(length, 0)


def gathered(data: NDArray[np.uint8], places: I64, lengths: I64) -> tuple[Any, Any]:
    """Copy fields one after the other; return their offsets (one more than fields) and bytes.

    They lie behind each other in the data, so fields and the gaps between them form an Arrow
    array, of which Arrow takes every second item.
    """
    edges = np.stack((places, places + np.maximum(lengths, 0)), axis=1).astype(np.int32).ravel()
    between = pa.Array.from_buffers(
        pa.binary(), max(len(edges) - 1, 0), [None, pa.py_buffer(edges), pa.py_buffer(data)]
    )
    taken = between.take(pa.array(np.arange(0, len(edges), 2)))
    _, ends, content = taken.buffers()
    return (
        np.frombuffer(ends, np.int32)[: len(places) + 1],
        np.frombuffer(content, np.uint8) if content is not None else np.empty(0, np.uint8),
    )


# --- row hashes -----------------------------------------------------------------------------------
# Spark's ``xxhash64`` of a row, made on Arrow columns: the same number as in the JVM.
#
# Spark's ``XxHash64`` goes from column to column, each hashed with the result of the one before as
# its seed, 42 for the first; a null leaves the hash unchanged. Bytes are hashed by XXH64 as
# specified (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md), numbers by its tail
# alone.
#
# So a task whose rows never were in the JVM gives the same fingerprint as one whose rows were: a
# batch may be replayed either way. The loops over bytes are numpy's here, a column of words at a
# time, and those of :mod:`.numba_kernels` where they are loaded (:mod:`.kernels`).


U64 = np.uint64
Words = NDArray[np.uint64]
SEED = U64(42)

_P1, _P2, _P3 = U64(0x9E3779B185EBCA87), U64(0xC2B2AE3D27D4EB4F), U64(0x165667B19E3779F9)
_P4, _P5 = U64(0x85EBCA77C2B2AE63), U64(0x27D4EB2F165667C5)


def hash_ints(numbers: NDArray[np.int32], valid: NDArray[np.bool_], hashes: Words) -> None:
    """Update each row's hash with a number of at most 32 bits; a null leaves it unchanged."""
    h = hashes + _P5 + U64(4)
    h ^= numbers.view(np.uint32).astype(np.uint64) * _P1
    h = _mixed(_rotl(h, 23) * _P2 + _P3)
    np.copyto(hashes, h, where=valid)


def hash_longs(numbers: NDArray[np.int64], valid: NDArray[np.bool_], hashes: Words) -> None:
    """Update each row's hash with a number of 64 bits; a null leaves it unchanged."""
    h = hashes + _P5 + U64(8)
    h = _mixed(_with_word(h, numbers.view(np.uint64)))
    np.copyto(hashes, h, where=valid)


def hash_bytes(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int32],
    valid: NDArray[np.bool_],
    hashes: Words,
) -> None:
    """Update each row's hash with the row's bytes; a null leaves it unchanged."""
    starts = offsets[:-1].astype(np.int64)
    lengths = np.diff(offsets).astype(np.int64)
    if not len(starts):
        return
    words = _unaligned(data)
    h = np.where(lengths >= 32, _stripes(words, starts, lengths, hashes), hashes + _P5)
    h += lengths.astype(np.uint64)
    at, left = starts + (lengths & ~31), lengths & 31
    for _ in range(3):
        rows = left >= 8
        h = np.where(rows, _with_word(h, _at(words, at, rows)), h)
        at, left = at + 8 * rows, left - 8 * rows
    rows = left >= 4
    low = _at(words, at, rows) & U64(0xFFFFFFFF)
    h = np.where(rows, _rotl(h ^ (low * _P1), 23) * _P2 + _P3, h)
    at, left = at + 4 * rows, left - 4 * rows
    for _ in range(3):
        rows = left >= 1
        byte = _at(words, at, rows) & U64(0xFF)
        h = np.where(rows, _rotl(h ^ (byte * _P5), 11) * _P1, h)
        at, left = at + rows, left - rows
    np.copyto(hashes, _mixed(h), where=valid)


def _stripes(words: Words, starts: Any, lengths: Any, seed: Words) -> Words:
    lanes = [seed + _P1 + _P2, seed + _P2, seed.copy(), seed - _P1]
    at, left = starts.copy(), lengths.copy()
    while (rows := left >= 32).any():
        for index, lane in enumerate(lanes):
            word = _at(words, at + 8 * index, rows)
            lanes[index] = np.where(rows, _rotl(lane + word * _P2, 31) * _P1, lane)
        at, left = at + 32 * rows, left - 32 * rows
    h = sum((_rotl(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)), U64(0))
    for lane in lanes:
        h = (h ^ (_rotl(lane * _P2, 31) * _P1)) * _P1 + _P4
    return np.asarray(h)


def _unaligned(data: NDArray[np.uint8]) -> Words:
    """Return the eight bytes from each place on, little endian; zeros follow the data's end."""
    padded = np.concatenate((data, np.zeros(8, np.uint8)))
    return np.ndarray((len(data) + 1,), "<u8", padded.data, strides=(1,))


def _at(words: Words, at: Any, rows: Any) -> Words:
    return words[np.where(rows, at, 0)]


def _with_word(h: Words, word: Words) -> Words:
    return _rotl(h ^ (_rotl(word * _P2, 31) * _P1), 27) * _P1 + _P4


def _rotl(word: Words, bits: int) -> Words:
    return (word << U64(bits)) | (word >> U64(64 - bits))


def _mixed(h: Words) -> Words:
    h = (h ^ (h >> U64(33))) * _P2
    h = (h ^ (h >> U64(29))) * _P3
    return h ^ (h >> U64(32))
