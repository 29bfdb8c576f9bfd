"""The loop of :mod:`.row_hashes` over bytes, XXH64; see :mod:`.compiled`."""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from airflow_eos.kafka.records.compiled_memory import jit

_U = np.uint64
_P1, _P2, _P3 = _U(0x9E3779B185EBCA87), _U(0xC2B2AE3D27D4EB4F), _U(0x165667B19E3779F9)
_P4, _P5 = _U(0x85EBCA77C2B2AE63), _U(0x27D4EB2F165667C5)


@jit
def _rotl(word: Any, bits: Any) -> Any:
    return (word << nb.uint64(bits)) | (word >> nb.uint64(64 - bits))


@jit
def _word(data: Any, at: Any) -> Any:
    """Eight bytes, little endian. A place that is unsigned lets LLVM make one load of it."""
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
    """XXH64."""
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
def hash_bytes(data: Any, offsets: Any, valid: Any, told: Any, hashes: Any) -> None:
    """Go on from each row's hash with its bytes; a null leaves it as it is.

    ``told``: then with a number of 32 bits, 1 where the row is null and 0 where not.
    """
    for row in range(len(hashes)):
        h = hashes[row]
        if valid[row]:
            start = nb.uint64(offsets[row])
            h = _hash(data, start, nb.uint64(offsets[row + 1]) - start, h)
        if told:
            h = h + _P5 + _U(4)
            if not valid[row]:
                h ^= _P1
            h = _mixed(_rotl(h, 23) * _P2 + _P3)
        hashes[row] = h
