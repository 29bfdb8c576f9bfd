"""Spark's ``xxhash64`` of a row, made on Arrow columns: the same number as in the JVM.

Spark's ``XxHash64`` goes from column to column, each hashed with the result of the one before as
its seed, 42 for the first; a null leaves it as it is. Bytes are hashed by XXH64 as it is specified
(https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md), numbers by its tail alone.

So a task that no row of the JVM has met gives the same fingerprint as one that has: batches are
replayed either way. The loops over bytes are numpy's here, a column of words at a time, and those
of :mod:`.compiled` where they are there (:mod:`.loops`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

U64 = np.uint64
Words = NDArray[np.uint64]
SEED = U64(42)

_P1, _P2, _P3 = U64(0x9E3779B185EBCA87), U64(0xC2B2AE3D27D4EB4F), U64(0x165667B19E3779F9)
_P4, _P5 = U64(0x85EBCA77C2B2AE63), U64(0x27D4EB2F165667C5)


def hash_ints(numbers: NDArray[np.int32], valid: NDArray[np.bool_], hashes: Words) -> None:
    """Go on from each row's hash with a number of at most 32 bits."""
    h = hashes + _P5 + U64(4)
    h ^= numbers.view(np.uint32).astype(np.uint64) * _P1
    h = _mixed(_rotl(h, 23) * _P2 + _P3)
    np.copyto(hashes, h, where=valid)


def hash_longs(numbers: NDArray[np.int64], valid: NDArray[np.bool_], hashes: Words) -> None:
    """Go on from each row's hash with a number of 64 bits."""
    h = hashes + _P5 + U64(8)
    h = _mixed(_with_word(h, numbers.view(np.uint64)))
    np.copyto(hashes, h, where=valid)


def hash_bytes(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int32],
    valid: NDArray[np.bool_],
    hashes: Words,
) -> None:
    """Go on from each row's hash with its bytes; a null leaves it as it is."""
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
        for place, lane in enumerate(lanes):
            word = _at(words, at + 8 * place, rows)
            lanes[place] = np.where(rows, _rotl(lane + word * _P2, 31) * _P1, lane)
        at, left = at + 32 * rows, left - 32 * rows
    h = sum((_rotl(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)), U64(0))
    for lane in lanes:
        h = (h ^ (_rotl(lane * _P2, 31) * _P1)) * _P1 + _P4
    return np.asarray(h)


def _unaligned(data: NDArray[np.uint8]) -> Words:
    """The eight bytes from each place on, little endian; zeros follow the last ones."""
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
