"""Makes the keys for ``benchmarks.state``, and the exact counts expected in the output."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from airflow_eos.arrow.producer.writer import TransactionalWriter
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.settings import KafkaSettings
from benchmarks.rows import content_sum

Keys = NDArray[np.int64]
_CHUNK = 100_000
_MASK = (1 << 64) - 1


class Counted:
    """Counts how often each key was sent; a key comes at most once in one send."""

    def __init__(self, keys: int) -> None:
        self._counts = np.zeros(keys, np.int64)
        self._random = np.random.default_rng(16)
        self.rows, self._sum = 0, 0

    def every(self) -> Keys:
        """Return all keys once, in random order: ascending keys would be easy for RocksDB."""
        return self._counted(self._random.permutation(len(self._counts)))

    def some(self, size: int) -> Keys:
        """Return ``size`` random keys, none twice."""
        return self._counted(self._random.choice(len(self._counts), size, replace=False))

    def again(self, keys: Keys) -> Keys:
        """Return these keys, counted once more."""
        return self._counted(keys)

    def expected(self) -> tuple[int, int]:
        """Return the rows expected so far, and the sum of their hashes, as ``CheckTopic`` finds."""
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
    """Encode each key in eight bytes, the highest first, as Java writes a long."""
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
