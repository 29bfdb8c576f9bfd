"""The loops of :mod:`.spans`, compiled by Numba (the extra ``fast``): record batches → columns.

Nothing imports the ``compiled`` modules by name but :mod:`.loops`, which does without them where
they cannot be imported, and until they have been: Numba takes most of a second to load, and a first
use compiles. What was compiled is cached beside these files, or in the user's cache where that
cannot be written.

Signed and unsigned numbers do not mix here: Numba would make floating point of them. Places that
are unsigned spare it a look for negative ones, which count from the end.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from airflow_eos.kafka.records.compiled_memory import jit, memcpy

_MOST, _LEAST = (1 << 63) - 1, -(1 << 63)


@jit
def _varint(data: Any, at: int, end: int) -> Any:
    """Number and next place; the place is -1 where the number goes on behind ``end``."""
    number = nb.uint64(0)
    shift = nb.uint64(0)
    while at < end and shift < nb.uint64(70):
        byte = data[at]
        at += 1
        number |= nb.uint64(byte & np.uint8(0x7F)) << shift
        if byte < 0x80:
            half = nb.int64(number >> nb.uint64(1))
            return (-half - 1 if number & nb.uint64(1) else half), at
        shift += nb.uint64(7)
    return 0, -1


@jit
def _field(data: Any, at: int, end: int) -> Any:
    """Place, length (-1: null) and next place of a field; the next place is -1 where it is bad."""
    length, at = _varint(data, at, end)
    if at < 0 or length < -1 or length > end - at:
        return 0, 0, -1
    return at, length, at + max(length, 0)


@jit
def _behind_headers(data: Any, at: int, end: int, count: int) -> int:
    """Where they end; -1 where they do not, or one has no name.

    A header has two bytes or more: so many are walked, and an array is made of no more.
    """
    if count < 0 or count > (end - at) // 2:
        return -1
    for _ in range(count):
        _place, length, at = _field(data, at, end)
        if at < 0 or length < 0:
            return -1
        _place, length, at = _field(data, at, end)
        if at < 0:
            return -1
    return at


@jit
def _time_and_delta(data: Any, at: int, end: int, base: int) -> Any:
    """Time stamp, distance to the batch's first offset, next place; -1 where they are bad."""
    elapsed, at = _varint(data, at, end)
    if at < 0:
        return 0, 0, -1
    if base > _MOST - elapsed if elapsed > 0 else base < _LEAST - elapsed:  # more than 64 bits
        return 0, 0, -1
    delta, at = _varint(data, at, end)
    return base + elapsed, delta, at


@jit
def scan(
    data: Any,
    starts: Any,
    counts: Any,
    offsets: Any,
    lasts: Any,
    times: Any,
    stamped: Any,
    out: Any,
) -> Any:
    """Fill the columns of ``Spans``, the rows of ``out``; the place of a garbled batch, or -1."""
    row = 0
    for batch in range(len(counts)):
        at, last = starts[batch], starts[batch + 1]
        least, most = 0, lasts[batch] - offsets[batch]
        for _ in range(counts[batch]):
            length, at = _varint(data, at, last)
            if at < 0 or length < 1 or length > last - at:
                return batch
            end = at + length
            time, delta, at = _time_and_delta(data, at + 1, end, times[batch])
            if at < 0 or delta < least or delta > most:
                return batch
            least = delta + 1
            key, key_length, at = _field(data, at, end)
            if at < 0:
                return batch
            value, value_length, at = _field(data, at, end)
            if at < 0:
                return batch
            headers, at = _varint(data, at, end)
            if at < 0 or _behind_headers(data, at, end, headers) != end:
                return batch
            out[0, row] = offsets[batch] + delta
            out[1, row] = stamped[batch] if stamped[batch] >= 0 else time
            out[2, row] = key
            out[3, row] = key_length
            out[4, row] = value
            out[5, row] = value_length
            out[6, row] = at
            out[7, row] = headers
            row += 1
            at = end
        if at != last:
            return batch
    return -1


@jit
def scan_headers(data: Any, places: Any, counts: Any, out: Any) -> None:
    """Fill the four columns of ``header_spans_of``, of rows that :func:`scan` has found."""
    found = 0
    for row in range(len(places)):
        at = places[row]
        for _ in range(counts[row]):
            name, name_length, at = _field(data, at, len(data))
            value, value_length, at = _field(data, at, len(data))
            out[0, found] = name
            out[1, found] = name_length
            out[2, found] = value
            out[3, found] = value_length
            found += 1


@jit
def gather(data: Any, places: Any, lengths: Any, ends: Any, out: Any) -> None:
    """Copy fields one after the other; ``ends`` (one more than rows) gets where each begins."""
    at = nb.uint64(0)
    source, to = nb.uint64(data.ctypes.data), nb.uint64(out.ctypes.data)
    for row in range(len(places)):
        ends[row] = at
        length = nb.uint64(max(lengths[row], 0))
        memcpy(to + at, source + nb.uint64(places[row]), length)
        at += length
    ends[len(places)] = at
