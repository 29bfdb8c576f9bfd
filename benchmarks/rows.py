"""Makes rows of about 110 bytes: orders as JSON, keyed by customer; a row depends on its number."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_eos.arrow.producer.writer import TransactionalWriter
from airflow_eos.core.delivery.task import mixed
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.settings import KafkaSettings

SPARK_BATCH = 10_000
"""Rows of an Arrow batch that Spark gives to Python (spark.sql.execution.arrow…)."""
_CUSTOMERS = 50_000
_COUNTRIES = ("DE", "AT", "CH", "FR", "GB", "US", "PL", "NL")
_CURRENCIES = ("EUR", "EUR", "CHF", "EUR", "GBP", "USD", "PLN", "EUR")
_MASK = (1 << 64) - 1


def batches(count: int, size: int = SPARK_BATCH) -> Iterator[pa.RecordBatch]:
    """Yield ``count`` rows in Arrow batches of ``size``, with columns key and value (binary)."""
    for first in range(0, count, size):
        yield _batch(first, min(size, count - first))


def _batch(first: int, count: int) -> pa.RecordBatch:
    rng = np.random.default_rng(first)
    country = rng.integers(0, len(_COUNTRIES), count)
    customer = _padded("c-", rng.integers(0, _CUSTOMERS, count), 6)
    value = pc.binary_join_element_wise(
        '{"order_id":"',
        _padded("o-", np.arange(first, first + count), 9),
        '","customer":"',
        customer,
        '","country":"',
        pa.array(_COUNTRIES).take(pa.array(country)),
        '","currency":"',
        pa.array(_CURRENCIES).take(pa.array(country)),
        # One row of ten has no positive quantity: the ETL leaves it out.
        '","quantity":',
        pa.array(rng.integers(0, 10, count)).cast(pa.string()),
        ',"cents":',
        pa.array(rng.integers(100, 100_000, count)).cast(pa.string()),
        "}",
        "",
    )
    columns: list[Any] = [customer.cast(pa.binary()), value.cast(pa.binary())]
    return pa.RecordBatch.from_arrays(columns, ["key", "value"])


def _padded(prefix: str, numbers: Any, width: int) -> Any:
    digits = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), width, "0")
    return pc.binary_join_element_wise(prefix, digits, "")


def fill(bootstrap_servers: str, topic: str, count: int) -> None:
    """Write ``count`` rows to the topic."""
    settings = KafkaSettings.from_librdkafka({"bootstrap.servers": bootstrap_servers})
    with ConnectionPool(settings) as wire:
        writer = TransactionalWriter(wire, topic=topic)
        writer.begin(None, 60_000)
        for batch in batches(count, 100_000):
            writer.write(batch)
        writer.prepare()


def content_sum(rows: Iterator[pa.RecordBatch]) -> int:
    """Return the sum that ``CheckTopic.java`` finds in a topic of just these rows, in any order."""
    total = 0
    for batch in rows:
        keys = _checksums(batch.column("key"))
        values = _checksums(batch.column("value"))
        # Mixed, since a sum of plain CRCs would miss swapped halves.
        words = mixed((keys << np.uint64(32)) | values)
        total = (total + int(words.sum(dtype=np.uint64))) & _MASK
    return total


def _checksums(column: Any) -> Any:
    return np.fromiter(map(zlib.crc32, column.to_pylist()), np.uint64, len(column))
