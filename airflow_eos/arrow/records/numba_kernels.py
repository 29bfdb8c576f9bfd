"""The loops of :mod:`.numpy_kernels`, and of encoding, compiled by Numba (the extra ``fast``).

Only :mod:`.kernels` imports this module; it does without where the import fails, and until it is
done: Numba takes most of a second to load, and a first use compiles. The machine code is cached
beside this file, or in the user's cache where the folder cannot be written.

Signed and unsigned numbers do not mix here: Numba would make floating point of them. Unsigned
places spare the check for negative ones, which count from the end.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

from airflow_eos.arrow.records.layout import MOST_HEADERS

jit = nb.njit(nogil=True, cache=True, boundscheck=False)
_raw_memcpy: Any = cgutils.raw_memcpy


def _memcpy(_context: Any, _to: Any, _source: Any, _count: Any) -> Any:
    """Call C's memcpy on addresses; a loop would copy single bytes, since arrays may overlap."""

    def generate(context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        target, origin = (builder.inttoptr(address, byte) for address in given[:2])
        _raw_memcpy(builder, target, origin, given[2], 1)
        return context.get_dummy_value()

    return nb.void(nb.uint64, nb.uint64, nb.uint64), generate


memcpy: Any = intrinsic(_memcpy)


# --- shared parts ---------------------------------------------------------------------------------


_MOST, _LEAST = (1 << 63) - 1, -(1 << 63)


@jit
def _varint(data: Any, at: int, end: int) -> Any:
    """Read a varint: return it and the next place, -1 where the varint goes on behind ``end``."""
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
    """Read a field: return its place, length (-1: null) and the next place (-1: it is garbled)."""
    length, at = _varint(data, at, end)
    if at < 0 or length < -1 or length > end - at:
        return 0, 0, -1
    return at, length, at + max(length, 0)


@jit
def _behind_headers(data: Any, at: int, end: int, count: int) -> int:
    """Return where a record's headers end; -1 where they do not, or one has no name.

    A header has two bytes or more: an impossible count is refused before headers are walked.
    """
    if count < 0 or count > (end - at) // 2 or count > MOST_HEADERS:
        return -1
    for _ in range(count):
        _start, length, at = _field(data, at, end)
        if at < 0 or length < 0:
            return -1
        _start, length, at = _field(data, at, end)
        if at < 0:
            return -1
    return at


@jit
def _time_and_delta(data: Any, at: int, end: int, base: int) -> Any:
    """Read a record's timestamp and offset delta: return both and the next place (-1: garbled)."""
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
    """Fill ``out``, with the columns of ``Spans`` as rows; return a garbled batch's index or -1."""
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


_U = np.uint64


# --- compiled hashes ------------------------------------------------------------------------------
# The loop of :mod:`.numpy_kernels` over bytes, XXH64.


_P1, _P2, _P3 = _U(0x9E3779B185EBCA87), _U(0xC2B2AE3D27D4EB4F), _U(0x165667B19E3779F9)
_P4, _P5 = _U(0x85EBCA77C2B2AE63), _U(0x27D4EB2F165667C5)


@jit
def _rotl(word: Any, bits: Any) -> Any:
    return (word << nb.uint64(bits)) | (word >> nb.uint64(64 - bits))


@jit
def _word(data: Any, at: Any) -> Any:
    """Return eight bytes, little endian. An unsigned place lets LLVM make this one load."""
    return (
        nb.uint64(data[at])
        | nb.uint64(data[at + _U(1)]) << _U(8)
        | nb.uint64(data[at + _U(2)]) << _U(16)
        | nb.uint64(data[at + _U(3)]) << _U(24)
        | nb.uint64(data[at + _U(4)]) << _U(32)
        | nb.uint64(data[at + _U(5)]) << _U(40)
        | nb.uint64(data[at + _U(6)]) << _U(48)
        | nb.uint64(data[at + _U(7)]) << _U(56)
    )


@jit
def _mixed(h: Any) -> Any:
    h ^= h >> _U(33)
    h *= _P2
    h ^= h >> _U(29)
    h *= _P3
    return h ^ (h >> _U(32))


@jit
def _hash(data: Any, at: Any, length: Any, seed: Any) -> Any:
    """Return the XXH64 of bytes."""
    left = length
    if length >= _U(32):
        a, b, c, d = seed + _P1 + _P2, seed + _P2, seed, seed - _P1
        while left >= _U(32):
            a = _rotl(a + _word(data, at) * _P2, 31) * _P1
            b = _rotl(b + _word(data, at + _U(8)) * _P2, 31) * _P1
            c = _rotl(c + _word(data, at + _U(16)) * _P2, 31) * _P1
            d = _rotl(d + _word(data, at + _U(24)) * _P2, 31) * _P1
            at += _U(32)
            left -= _U(32)
        h = _rotl(a, 1) + _rotl(b, 7) + _rotl(c, 12) + _rotl(d, 18)
        for lane in (a, b, c, d):
            h = (h ^ (_rotl(lane * _P2, 31) * _P1)) * _P1 + _P4
    else:
        h = seed + _P5
    h += length
    while left >= _U(8):
        h = _rotl(h ^ (_rotl(_word(data, at) * _P2, 31) * _P1), 27) * _P1 + _P4
        at += _U(8)
        left -= _U(8)
    if left >= _U(4):
        word = (
            nb.uint64(data[at])
            | nb.uint64(data[at + _U(1)]) << _U(8)
            | nb.uint64(data[at + _U(2)]) << _U(16)
            | nb.uint64(data[at + _U(3)]) << _U(24)
        )
        h = _rotl(h ^ (word * _P1), 23) * _P2 + _P3
        at += _U(4)
        left -= _U(4)
    while left > _U(0):
        h = _rotl(h ^ (nb.uint64(data[at]) * _P5), 11) * _P1
        at += _U(1)
        left -= _U(1)
    return _mixed(h)


@jit
def hash_bytes(data: Any, offsets: Any, valid: Any, count_nulls: Any, hashes: Any) -> None:
    """Update each row's hash with the row's bytes; a null leaves it unchanged.

    ``count_nulls``: then also with a number of 32 bits, 1 where the row is null and 0 where not.
    """
    for row in range(len(hashes)):
        h = hashes[row]
        if valid[row]:
            start = nb.uint64(offsets[row])
            h = _hash(data, start, nb.uint64(offsets[row + 1]) - start, h)
        if count_nulls:
            h = h + _P5 + _U(4)
            if not valid[row]:
                h ^= _P1
            h = _mixed(_rotl(h, 23) * _P2 + _P3)
        hashes[row] = h


# --- compiled scatter -----------------------------------------------------------------------------
# Rows → records of their partitions, in the order in which they come.
#
# The bytes equal those of sorting the rows by partition and encoding one run after the other,
# without joining Arrow batches, without views, and without sorting. Rows have a key, a value and a
# time, no headers and no partition; arrays of nulls and times are empty where no row has one.


_M, _SEED, _MASK = _U(0x5BD1E995), _U(0x9747B28C), _U(0xFFFFFFFF)
# ``state`` has a column for each partition: bytes written, bytes at which it is cut next, number of
# runs, number of cuts done, bytes in all, index of the run that is written.
_SEEN, _CUT_AT, _CUTS, _DONE, _TOTAL, _RUN = range(6)
# ``runs`` has a column for each run: where it begins and ends, how many rows it has, and the first
# and the largest of their times.
_START, _END, _ROWS, _BASE, _LATEST = range(5)
_NEVER = 1 << 62


def begun(sizes: Any, cuts: Any) -> tuple[Any, Any]:
    """Return ``state`` and ``runs`` of :func:`scatter` as they are before the first row.

    Args:
        sizes: bytes of each partition, int64.
        cuts: number of runs of about equal size into which each partition is cut, int64.
    """
    state, runs = np.zeros((6, len(sizes)), np.int64), np.zeros((5, int(cuts.sum())), np.int64)
    state[_CUT_AT] = np.where(cuts > 1, sizes // np.maximum(cuts, 1), _NEVER)
    state[_CUTS], state[_TOTAL] = cuts, sizes
    state[_RUN] = np.cumsum(cuts) - cuts
    used = cuts > 0
    runs[_START, state[_RUN, used]] = runs[_END, state[_RUN, used]] = (np.cumsum(sizes) - sizes)[
        used
    ]
    return state, runs


@jit
def _murmur2(data: Any, at: Any, length: Any) -> Any:
    """Return the hash of Java's ``org.apache.kafka.common.utils.Utils.murmur2``."""
    h = _SEED ^ length
    left = length
    while left >= _U(4):
        k = (
            nb.uint64(data[at])
            | nb.uint64(data[at + _U(1)]) << _U(8)
            | nb.uint64(data[at + _U(2)]) << _U(16)
            | nb.uint64(data[at + _U(3)]) << _U(24)
        )
        k = (k * _M) & _MASK
        k = ((k ^ (k >> _U(24))) * _M) & _MASK
        h = ((h * _M) & _MASK) ^ k
        at += _U(4)
        left -= _U(4)
    if left == _U(3):
        h ^= nb.uint64(data[at + _U(2)]) << _U(16)
    if left >= _U(2):
        h ^= nb.uint64(data[at + _U(1)]) << _U(8)
    if left >= _U(1):
        h = ((h ^ nb.uint64(data[at])) * _M) & _MASK
    h = ((h ^ (h >> _U(13))) * _M) & _MASK
    return h ^ (h >> _U(15))


@jit
def _zigzag(number: Any) -> Any:
    return nb.uint64((number << 1) ^ (number >> 63))


@jit
def _width(number: Any) -> Any:
    """Return the number of bytes of a varint."""
    width = _U(1)
    while number >= _U(0x80):
        number >>= _U(7)
        width += _U(1)
    return width


@jit
def _put(number: Any, out: Any, at: Any) -> Any:
    """Write a varint; return the place of the next field."""
    while number >= _U(0x80):
        out[at] = np.uint8((number & _U(0x7F)) | _U(0x80))
        number >>= _U(7)
        at += _U(1)
    out[at] = np.uint8(number)
    return at + _U(1)


@jit
def choose_partitions(
    key_edges: Any,
    keys: Any,
    no_key: Any,
    value_edges: Any,
    no_value: Any,
    turn: int,
    frame: int,
    targets: Any,
    sizes: Any,
) -> int:
    """Choose a partition for each row by its key; return the size of the largest row.

    Rows without a key go to the partition ``turn``. Add the bytes of each partition's rows to its
    item of ``sizes`` (``frame`` per row for all but key and value: an upper bound).
    """
    largest = 0
    partitions = _U(len(sizes))
    for row in range(len(targets)):
        at = nb.uint64(key_edges[row])
        key = nb.uint64(key_edges[row + 1]) - at
        value = nb.uint64(value_edges[row + 1]) - nb.uint64(value_edges[row])
        target = _U(0)
        if len(no_key) and no_key[row]:
            target, key = nb.uint64(turn), _U(0)
        elif partitions > _U(1):
            target = (_murmur2(keys, at, key) & _U(0x7FFFFFFF)) % partitions
        if len(no_value) and no_value[row]:
            value = _U(0)
        targets[row] = target
        size = nb.int64(key + value) + frame
        sizes[target] += size
        largest = max(largest, size)
    return largest


@jit
def scatter(
    key_edges: Any,
    keys: Any,
    no_key: Any,
    value_edges: Any,
    values: Any,
    no_value: Any,
    times: Any,
    targets: Any,
    now: int,
    frame: int,
    state: Any,
    runs: Any,
    out: Any,
) -> None:
    """Write each row behind its partition's earlier rows; ``now`` where rows have no times.

    ``state`` and ``runs`` are passed on from call to call. A partition is cut where
    :func:`~airflow_eos.arrow.producer.partitioner.cut` cuts it.
    """
    from_keys, from_values = nb.uint64(keys.ctypes.data), nb.uint64(values.ctypes.data)
    to = nb.uint64(out.ctypes.data)
    time = nb.int64(now)
    for row in range(len(targets)):
        target = targets[row]
        run = state[_RUN, target]
        if state[_SEEN, target] >= state[_CUT_AT, target]:
            while state[_SEEN, target] >= state[_CUT_AT, target]:
                state[_DONE, target] += 1
                cut = state[_DONE, target] + 1
                state[_CUT_AT, target] = _NEVER
                if cut < state[_CUTS, target]:
                    state[_CUT_AT, target] = state[_TOTAL, target] * cut // state[_CUTS, target]
            if runs[_ROWS, run] > 0:
                runs[_START, run + 1] = runs[_END, run + 1] = runs[_END, run]
                run += 1
                state[_RUN, target] = run
        if len(times):
            time = times[row]
        if runs[_ROWS, run] == 0:
            runs[_BASE, run] = runs[_LATEST, run] = time
        runs[_LATEST, run] = max(runs[_LATEST, run], time)
        elapsed = _zigzag(time - runs[_BASE, run])
        at = nb.uint64(runs[_END, run])
        # Lengths in a function of their own took three times as long.
        key_at, value_at = nb.uint64(key_edges[row]), nb.uint64(value_edges[row])
        key = nb.uint64(key_edges[row + 1]) - key_at
        value = nb.uint64(value_edges[row + 1]) - value_at
        key_length, value_length = key << _U(1), value << _U(1)
        if len(no_key) and no_key[row]:
            key, key_length = _U(0), _U(1)
        if len(no_value) and no_value[row]:
            value, value_length = _U(0), _U(1)
        delta = nb.uint64(runs[_ROWS, run]) << _U(1)
        size = _U(2) + _width(elapsed) + _width(delta) + _width(key_length) + _width(value_length)
        at = _put((size + key + value) << _U(1), out, at)
        out[at] = 0
        at = _put(elapsed, out, at + _U(1))
        at = _put(delta, out, at)
        at = _put(key_length, out, at)
        memcpy(to + at, from_keys + key_at, key)
        at = _put(value_length, out, at + key)
        memcpy(to + at, from_values + value_at, value)
        at += value
        out[at] = 0
        runs[_END, run] = at + _U(1)
        runs[_ROWS, run] += 1
        state[_SEEN, target] += nb.int64(key) + nb.int64(value) + frame
