"""The rows of an Arrow batch as confluent-kafka's ``produce`` takes them, one by one."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import repeat
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import RowError
from airflow_eos.kafka.records.columns import timestamps_of

if TYPE_CHECKING:
    import pyarrow as pa

Message = tuple[Any, Any, Any, int, int, Any]
"""(topic, key, value, partition or -1, timestamp in ms, headers as (name, value) pairs or None)"""


def messages(rows: pa.RecordBatch, default_topic: str | None) -> Iterable[Message]:
    """The rows in their order, ready to be produced.

    Raises:
        RowError: a timestamp that librdkafka would not send as it is.
    """

    def column(name: str) -> Iterable[Any]:
        return rows.column(name).to_pylist() if name in rows.schema.names else repeat(None)

    for value, key, topic, partition, timestamp, headers in zip(
        rows.column("value").to_pylist(),
        column("key"),
        column("topic"),
        column("partition"),
        _timestamps(rows),
        column("headers"),
        strict=False,
    ):
        yield (
            default_topic if topic is None else topic,
            key,
            value,
            -1 if partition is None else partition,
            timestamp,
            [(header["key"], header["value"]) for header in headers] if headers else None,
        )


def _timestamps(rows: pa.RecordBatch) -> Iterable[int]:
    times = timestamps_of(rows, now_ms=time.time_ns() // 1_000_000)
    if isinstance(times, int):
        return repeat(times)
    listed: list[int] = times.tolist()
    if 0 in listed:
        raise RowError(
            f"row {listed.index(0)} has the timestamp 0 (1970-01-01), which librdkafka takes for "
            "'now': correct it, or use producer='arrow'"
        )
    return listed
