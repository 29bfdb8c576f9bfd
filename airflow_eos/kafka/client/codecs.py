"""The five compression codecs of Kafka's record batches."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cramjam
import lz4.frame
import numpy as np
import pyarrow as pa

from airflow_eos.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_eos.kafka.client.fetch import FetchedRecordBatch

_GZIP_LEVEL = 6
_ZSTD_LEVEL = 1
_GZIP_CONTAINER = 31  # zlib's wbits: the largest window, gzip header and trailer
_SNAPPY_BLOCK_BYTES = 32 * 1024
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
# org.xerial.snappy.SnappyCodec: magic, version 1, compatible with version 1.
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)


@dataclass(frozen=True, slots=True)
class Codec:
    """A codec: its name, its code in a record batch's attributes, and its compress function."""

    name: str
    code: int
    compress: Callable[[memoryview], Any]
    """Returns any object with the buffer protocol and a length in bytes."""


def codec(name: str) -> Codec:
    """Return the codec of a name, at its default level (ConfigurationError: no such codec)."""
    if name not in _CODECS:
        raise ConfigurationError(
            f"compression {name!r} is not known: choose one of {', '.join(_CODECS)}"
        )
    return _CODECS[name]


def _gzip(body: memoryview) -> bytes:
    return zlib.compress(body, _GZIP_LEVEL, _GZIP_CONTAINER)


def _snappy(body: memoryview) -> bytes:
    pieces = [_XERIAL_HEADER]
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
"""The names that ``codec`` knows, in the order of their codes."""


# --- decompression --------------------------------------------------------------------------------


_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
_FULL = "failed to write whole buffer"  # the codec library's error for too small a buffer

UNREADABLE = (
    *(IndexError, ValueError, struct.error, zlib.error),
    cramjam.DecompressionError,  # a subclass of none of these
)
"""The exceptions for bytes that are no record batch: the codecs' libraries' and this module's."""

MOST_BYTES = 256 * 1024 * 1024
"""Most bytes of a decompressed batch. A broker limits (``max.message.bytes``) the compressed batch:
49 kB of zstd can be 1.5 GiB, by which any writer of a topic could end all its readers."""


_times = [8]
"""How many times its size a compressed batch is given, 32 once one needed more than eight.

With 32 at once a worker took 2 to 15 percent more CPU, in the kernel: larger buffers, more faults.
"""
_MOST_TIMES = 32


def decompressed(batch: FetchedRecordBatch) -> bytes | memoryview:
    """Return a batch's records; raise one of UNREADABLE if it is too large or cannot be read.

    Never more than MOST_BYTES are made, whatever the batch says of its size.
    """
    match batch.codec:
        case 0:
            return bytes(batch.payload)
        case 1:
            return _gunzip(batch.payload)
        case 2:
            return _unsnappy(bytes(batch.payload))
        case 3:
            return _into(cramjam.lz4.decompress_into, batch.payload)
        case 4:
            return _into(cramjam.zstd.decompress_into, batch.payload)
        case codec:
            raise ValueError(f"compression type {codec} is not known")


def _too_large() -> ValueError:
    most = MOST_BYTES >> 20
    return ValueError(f"it has more than {most} MiB decompressed, the most that one may have")


def _gunzip(data: memoryview) -> bytes:
    whole = zlib.decompressobj(_GZIP_OR_ZLIB)
    found = whole.decompress(data, MOST_BYTES + 1)
    if len(found) > MOST_BYTES:
        raise _too_large()
    if not whole.eof:
        raise ValueError("it is cut short")
    return found


def _into(decompress: Callable[[memoryview, Any], int], data: memoryview) -> memoryview:
    """Decompress data of unknown size, into larger and larger buffers until it fits."""
    room = min(MOST_BYTES, 65_536 + _times[0] * len(data))
    while True:
        out = np.empty(room, np.uint8)  # the system provides only the memory that is written to
        try:
            return out[: decompress(data, out)].data
        except cramjam.DecompressionError as error:
            if str(error) != _FULL:
                raise
        if room == MOST_BYTES:
            raise _too_large()
        _times[0] = _MOST_TIMES
        room = min(MOST_BYTES, 16 * room)


def _unsnappy(data: bytes) -> bytes:
    """Decompress snappy: Java writes blocks in snappy-java's framing, librdkafka one raw block."""
    if not data.startswith(_XERIAL_MAGIC):
        blocks = [data]
    else:
        position, blocks = len(_XERIAL_HEADER), []
        while position < len(data):
            (length,) = struct.unpack_from(">i", data, position)
            position += 4
            if not 0 < length <= len(data) - position:
                raise ValueError("a block of snappy is longer than the batch")
            blocks.append(data[position : position + length])
            position += length
    if sum(map(cramjam.snappy.decompress_raw_len, blocks)) > MOST_BYTES:
        raise _too_large()
    return b"".join(bytes(cramjam.snappy.decompress_raw(block)) for block in blocks)
