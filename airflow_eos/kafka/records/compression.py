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

_GZIP_LEVEL = 6
_ZSTD_LEVEL = 1
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


def codec(name: str) -> Codec:
    """The codec of that name, at its own default level.

    Raises:
        ConfigurationError: no such codec.
    """
    if name not in _CODECS:
        raise ConfigurationError(
            f"compression {name!r} is not known: choose one of {', '.join(_CODECS)}"
        )
    return _CODECS[name]


def _gzip(body: memoryview) -> bytes:
    return zlib.compress(body, _GZIP_LEVEL, _GZIP_CONTAINER)


def _snappy(body: memoryview) -> bytes:
    pieces = [_SNAPPY_HEADER]
    for start in range(0, len(body), _SNAPPY_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(body[start : start + _SNAPPY_BLOCK_BYTES]))
        pieces += (struct.pack(">i", len(block)), block)
    return b"".join(pieces)


def _lz4(body: memoryview) -> bytes:
    out: bytes = lz4.frame.compress(body, block_linked=False, store_size=False)
    return out


def _zstd(body: memoryview) -> Any:
    return pa.Codec("zstd", _ZSTD_LEVEL).compress(body)


_CODECS = {
    each.name: each
    for each in (
        Codec("none", 0, lambda body: body),
        Codec("gzip", 1, _gzip),
        Codec("snappy", 2, _snappy),
        Codec("lz4", 3, _lz4),
        Codec("zstd", 4, _zstd),
    )
}
NAMES = tuple(_CODECS)
"""What ``codec`` knows, in the order of their codes."""
