"""The five codecs of Kafka's record batches, each in the framing that Kafka's Java side reads.

| name   | code | framing                                                               |
|--------|------|-----------------------------------------------------------------------|
| none   | 0    | none                                                                  |
| gzip   | 1    | RFC 1952, standard library                                            |
| snappy | 2    | blocks of 32 KiB in snappy-java's stream framing ("xerial"), cramjam  |
| lz4    | 3    | LZ4 frame with *independent* blocks: Kafka refuses linked ones, which |
|        |      | are what Arrow's own lz4 writes                                       |
| zstd   | 4    | one frame, Arrow's own codec                                          |

lz4 costs the least CPU for JSON-like rows, snappy little more; zstd makes fewer bytes of them for
more CPU, and gzip costs by far the most.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cramjam
import lz4.frame
import pyarrow as pa

from airflow_eos.errors import ConfigurationError

_GZIP_CONTAINER = 31  # zlib's wbits: the largest window, gzip header and trailer
_SNAPPY_BLOCK_BYTES = 32 * 1024
# org.xerial.snappy.SnappyCodec: magic, version 1, compatible with version 1.
_SNAPPY_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)


@dataclass(frozen=True, slots=True)
class Codec:
    """A codec by its name, the code in a record batch's attributes, and what compresses."""

    name: str
    code: int
    compress: Callable[[memoryview], Any]
    """Any object with the buffer protocol and a length in bytes."""


def codec(name: str, level: int | None = None) -> Codec:
    """The codec of that name; ``level`` None is the codec's own default.

    gzip takes levels 1 to 9, zstd 1 to 22 and negative ones for more speed, lz4 0 to 12 (above 2
    far slower) and negative ones for more speed. snappy and none have no levels.

    Raises:
        ConfigurationError: no such codec, or no such level.
    """
    if name not in _LEVELS:
        raise ConfigurationError(
            f"compression {name!r} is not known: choose one of {', '.join(_LEVELS)}"
        )
    lowest, highest, usual = _LEVELS[name]
    chosen = usual if level is None else level
    if not lowest <= chosen <= highest:
        limits = f"{lowest} to {highest}" if lowest < highest else "none at all"
        raise ConfigurationError(f"compression {name!r} takes levels {limits}, not {level}")
    return _MAKERS[name](chosen)


def _none(_level: int) -> Codec:
    return Codec("none", 0, lambda body: body)


def _gzip(level: int) -> Codec:
    def compress(body: memoryview) -> bytes:
        return zlib.compress(body, level, _GZIP_CONTAINER)

    return Codec("gzip", 1, compress)


def _snappy(_level: int) -> Codec:
    def compress(body: memoryview) -> bytes:
        pieces = [_SNAPPY_HEADER]
        for start in range(0, len(body), _SNAPPY_BLOCK_BYTES):
            block = bytes(cramjam.snappy.compress_raw(body[start : start + _SNAPPY_BLOCK_BYTES]))
            pieces += (struct.pack(">i", len(block)), block)
        return b"".join(pieces)

    return Codec("snappy", 2, compress)


def _lz4(level: int) -> Codec:
    def compress(body: memoryview) -> bytes:
        out: bytes = lz4.frame.compress(
            body, compression_level=level, block_linked=False, store_size=False
        )
        return out

    return Codec("lz4", 3, compress)


def _zstd(level: int) -> Codec:
    coder = pa.Codec("zstd", level)

    def compress(body: memoryview) -> Any:
        return coder.compress(body)

    return Codec("zstd", 4, compress)


_LEVELS = {
    "none": (0, 0, 0),
    "gzip": (1, 9, 6),
    "snappy": (0, 0, 0),
    "lz4": (-64, 12, 0),
    "zstd": (-64, 22, 1),
}
_MAKERS: dict[str, Callable[[int], Codec]] = {
    "none": _none,
    "gzip": _gzip,
    "snappy": _snappy,
    "lz4": _lz4,
    "zstd": _zstd,
}
NAMES = tuple(_LEVELS)
"""What ``codec`` knows, in the order of their codes."""
