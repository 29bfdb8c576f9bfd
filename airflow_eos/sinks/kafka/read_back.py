"""What committed transactions wrote, read back by Spark's executors, one task a transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from airflow_eos.kafka.client.connection import Wire
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.transactions.identity import as_transaction
from airflow_eos.protocol.decision import PreparedWork

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

DELIVERED_SCHEMA = (
    "value binary, key binary, topic string, partition int, "
    "headers array<struct<key:string,value:binary>>, timestamp timestamp"
)


def read_back(
    spark: SparkSession, settings: KafkaSettings, works: Sequence[PreparedWork]
) -> DataFrame:
    """The rows as :data:`DELIVERED_SCHEMA`."""
    wanted = [(msgspec.json.encode(work),) for work in works]
    frame = spark.createDataFrame(wanted, "work binary")
    return frame.repartition(max(1, len(wanted))).mapInArrow(_ReadBack(settings), DELIVERED_SCHEMA)


@dataclass(frozen=True)
class _ReadBack:
    settings: KafkaSettings

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from airflow_eos.kafka.transactions.outcomes import SCHEMA, delivered_rows

        columns = ["value", "key", "topic", "partition", "headers", "timestamp"]
        timestamp = SCHEMA.get_field_index("timestamp")
        # Spark's Arrow reader takes timestamps in microseconds only (ArrowUtils.fromArrowType).
        as_spark = SCHEMA.set(timestamp, pa.field("timestamp", pa.timestamp("us", tz="UTC")))
        with Wire(self.settings) as wire:
            for batch in batches:
                transactions = [
                    as_transaction(msgspec.json.decode(encoded, type=PreparedWork))
                    for encoded in batch.column("work").to_pylist()
                ]
                for rows in delivered_rows(wire, transactions):
                    yield rows.cast(as_spark).select(columns)
