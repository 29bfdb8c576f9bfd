"""Keys for ``benchmarks.state``: what goes in, and what must have come out, to the last count."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.producer.writer import TransactionalWriter
from benchmarks.rows import content_sum

Keys = NDArray[np.int64]
_CHUNK = 100_000
_MASK = (1 << 64) - 1


class Counted:
    """How often each key was sent; a key comes once at most in what is sent at a time."""

    def __init__(self, keys: int) -> None:
        self._counts = np.zeros(keys, np.int64)
        self._random = np.random.default_rng(16)
        self.rows, self._sum = 0, 0

    def every(self) -> Keys:
        """All keys, once, in an order that is not theirs: an ordered one is a gift to RocksDB."""
        return self._counted(self._random.permutation(len(self._counts)))

    def some(self, size: int) -> Keys:
        """So many keys of all, none twice."""
        return self._counted(self._random.choice(len(self._counts), size, replace=False))

    def again(self, keys: Keys) -> Keys:
        """These, once more."""
        return self._counted(keys)

    def expected(self) -> tuple[int, int]:
        """Rows of the output up to here, and the sum of their hashes, as ``CheckTopic`` finds."""
        return self.rows, self._sum

    def _counted(self, keys: Keys) -> Keys:
        self._counts[keys] += 1
        self.rows += len(keys)
        self._sum = (self._sum + content_sum(self._told(keys))) & _MASK
        return keys

    def _told(self, keys: Keys) -> Iterator[pa.RecordBatch]:
        for part in _parts(keys):
            texts = pa.array(self._counts[part]).cast(pa.string()).cast(pa.binary())
            yield pa.RecordBatch.from_arrays([longs(part), texts], ["key", "value"])


def longs(keys: Keys) -> pa.Array:
    """Each key in eight bytes, the highest first, as Java writes a long."""
    data = pa.py_buffer(keys.astype(">i8").tobytes())
    fixed = pa.Array.from_buffers(pa.binary(8), len(keys), [None, data])
    return fixed.cast(pa.binary())


def send(bootstrap_servers: str, topic: str, keys: Keys) -> None:
    """Write a row for each key; return when the broker has them all."""
    settings = KafkaSettings.from_librdkafka({"bootstrap.servers": bootstrap_servers})
    with ConnectionPool(settings) as wire:
        writer = TransactionalWriter(wire, topic=topic)
        writer.begin(None, 60_000)
        for part in _parts(keys):
            value = pa.array([b"x"] * len(part), pa.binary())
            writer.write(pa.RecordBatch.from_arrays([longs(part), value], ["key", "value"]))
        writer.prepare()


def _parts(keys: Keys) -> Iterator[Keys]:
    for first in range(0, len(keys), _CHUNK):
        yield keys[first : first + _CHUNK]
