"""The compiled way of ``batch.encode_runs``: columns → records; see :mod:`.compiled`."""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from airflow_eos.kafka.records.compiled_memory import jit, memcpy

_U = np.uint64


@jit
def _zigzag(number: Any) -> Any:
    return nb.uint64((number << 1) ^ (number >> 63))


@jit
def _width(number: Any) -> Any:
    """Bytes of a varint."""
    width = _U(1)
    while number >= _U(0x80):
        number >>= _U(7)
        width += _U(1)
    return width


@jit
def _put(number: Any, out: Any, at: Any) -> Any:
    """Write a varint; where the next field goes."""
    while number >= _U(0x80):
        out[at] = np.uint8((number & _U(0x7F)) | _U(0x80))
        number >>= _U(7)
        at += _U(1)
    out[at] = np.uint8(number)
    return at + _U(1)


@jit
def _put_field(
    words: Any, row: int, inline: Any, data: Any, zigzag: Any, out: Any, at: Any, to: Any
) -> Any:
    """Write a length and its bytes, which are in the view itself or where it says."""
    at = _put(zigzag, out, at)
    if zigzag == _U(1):  # -1: a null
        return at
    length = zigzag >> _U(1)
    if length <= _U(12):
        source = inline + nb.uint64(row) * _U(16) + _U(4)
    else:
        source = data + (words[row, 1] >> _U(32))
    memcpy(to + at, source, length)
    return at + length


@jit
def encode(
    keys: Any,
    key_data: Any,
    no_key: Any,
    values: Any,
    value_data: Any,
    no_value: Any,
    times: Any,
    cuts: Any,
    out: Any,
    edges: Any,
) -> None:
    """Encode runs of rows without headers; ``edges`` (one more than runs) gets where each begins.

    Keys and values are views (see ``views``): the words, and the buffer of those that are long.
    """
    at = _U(0)
    to = nb.uint64(out.ctypes.data)
    in_keys, of_keys = nb.uint64(keys.ctypes.data), nb.uint64(key_data.ctypes.data)
    in_values, of_values = nb.uint64(values.ctypes.data), nb.uint64(value_data.ctypes.data)
    for run in range(len(cuts) - 1):
        edges[run] = at
        for row in range(cuts[run], cuts[run + 1]):
            key = (keys[row, 0] & _U(0xFFFFFFFF)) << _U(1)
            value = (values[row, 0] & _U(0xFFFFFFFF)) << _U(1)
            if len(no_key) and no_key[row]:
                key = _U(1)
            if len(no_value) and no_value[row]:
                value = _U(1)
            elapsed = _U(0)
            if len(times):
                elapsed = _zigzag(times[row] - times[cuts[run]])
            delta = nb.uint64(row - cuts[run]) << _U(1)
            size = _U(2) + _width(elapsed) + _width(delta) + _width(key) + _width(value)
            if key != _U(1):
                size += key >> _U(1)
            if value != _U(1):
                size += value >> _U(1)
            at = _put(size << _U(1), out, at)
            out[at] = 0
            at = _put(elapsed, out, at + _U(1))
            at = _put(delta, out, at)
            at = _put_field(keys, row, in_keys, of_keys, key, out, at, to)
            at = _put_field(values, row, in_values, of_values, value, out, at, to)
            out[at] = 0
            at += _U(1)
    edges[len(cuts) - 1] = at
