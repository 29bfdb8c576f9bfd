"""Rows → records of their partitions, in the order in which they come; see :mod:`.compiled`.

The same bytes as sorting the rows by partition and encoding them one run after the other, without
putting Arrow batches together, without views, and without sorting.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from airflow_eos.kafka.records.compiled_encoding import _put, _width
from airflow_eos.kafka.records.compiled_memory import jit, memcpy

_U = np.uint64
_M, _SEED, _MASK = _U(0x5BD1E995), _U(0x9747B28C), _U(0xFFFFFFFF)
# ``state`` has a column for each partition: bytes written, bytes at which it is cut next, into how
# many runs, how many cuts are done, bytes in all, the run that is written.
_SEEN, _CUT_AT, _CUTS, _DONE, _TOTAL, _RUN = range(6)
# ``runs`` has a column for each: where it begins and ends, and how many rows it has.
_START, _END, _ROWS = range(3)
_NEVER = 1 << 62


def begun(sizes: Any, cuts: Any) -> tuple[Any, Any]:
    """``state`` and ``runs`` before the first row.

    Args:
        sizes: bytes of each partition, int64.
        cuts: into how many runs of about the same size each is cut, int64.
    """
    state, runs = np.zeros((6, len(sizes)), np.int64), np.zeros((3, int(cuts.sum())), np.int64)
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
    """``org.apache.kafka.common.utils.Utils.murmur2``."""
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
def place(
    key_edges: Any, keys: Any, value_edges: Any, frame: int, targets: Any, sizes: Any, counts: Any
) -> int:
    """Choose a partition for each row by its key; the size of the largest row.

    ``sizes`` and ``counts``, one for each partition, grow by what comes to it: bytes, at most
    ``frame`` for what is neither key nor value, and rows.
    """
    largest = 0
    partitions = _U(len(sizes))
    for row in range(len(targets)):
        at = nb.uint64(key_edges[row])
        length = nb.uint64(key_edges[row + 1]) - at
        target = _U(0)
        if partitions > _U(1):
            target = (_murmur2(keys, at, length) & _U(0x7FFFFFFF)) % partitions
        targets[row] = target
        size = nb.int64(length) + value_edges[row + 1] - value_edges[row] + frame
        sizes[target] += size
        counts[target] += 1
        largest = max(largest, size)
    return largest


@jit
def scatter(
    key_edges: Any,
    keys: Any,
    value_edges: Any,
    values: Any,
    targets: Any,
    frame: int,
    state: Any,
    runs: Any,
    out: Any,
) -> None:
    """Write each row behind those of its partition; it has no null, headers or time of its own.

    ``state`` and ``runs`` go from one call to the next. A partition is cut where
    :func:`~airflow_eos.kafka.producer.routing.cut` cuts it.
    """
    from_keys, from_values = nb.uint64(keys.ctypes.data), nb.uint64(values.ctypes.data)
    to = nb.uint64(out.ctypes.data)
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
        at = nb.uint64(runs[_END, run])
        key_at, value_at = nb.uint64(key_edges[row]), nb.uint64(value_edges[row])
        key = nb.uint64(key_edges[row + 1]) - key_at
        value = nb.uint64(value_edges[row + 1]) - value_at
        key_length, value_length = key << _U(1), value << _U(1)
        delta = nb.uint64(runs[_ROWS, run]) << _U(1)
        size = _U(3) + _width(delta) + _width(key_length) + _width(value_length) + key + value
        at = _put(size << _U(1), out, at)
        out[at] = 0
        out[at + _U(1)] = 0
        at = _put(delta, out, at + _U(2))
        at = _put(key_length, out, at)
        memcpy(to + at, from_keys + key_at, key)
        at = _put(value_length, out, at + key)
        memcpy(to + at, from_values + value_at, value)
        at += value
        out[at] = 0
        runs[_END, run] = at + _U(1)
        runs[_ROWS, run] += 1
        state[_SEEN, target] += nb.int64(key) + nb.int64(value) + frame
