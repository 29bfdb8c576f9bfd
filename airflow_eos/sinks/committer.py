"""The driver's half of the Kafka sink: ends transactions and says what became of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.client.wire import Wire
from airflow_eos.kafka.transactions.ending import end_transactions
from airflow_eos.kafka.transactions.listing import list_open
from airflow_eos.kafka.transactions.outcomes import outcomes
from airflow_eos.kafka.transactions.settle import settle
from airflow_eos.transactions import (
    OpenTransaction,
    Outcome,
    PreparedTransaction,
    TransactionIdentity,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

DELIVERED_SCHEMA = (
    "value binary, key binary, topic string, partition int, "
    "headers array<struct<key:string,value:binary>>, timestamp timestamp"
)


class KafkaCommitter:
    """See :class:`airflow_eos.sinks.protocol.Committer`."""

    def __init__(self, wire: Wire, settings: KafkaSettings, prefix: str) -> None:
        self._wire = wire
        self._settings = settings
        self._prefix = prefix

    def commit(
        self, transactions: Sequence[PreparedTransaction]
    ) -> Mapping[TransactionIdentity, Outcome]:
        """End each with EndTxn(commit); where the answer is not enough, ask the log."""
        return settle(self._wire, transactions)

    def abort(self, transactions: Collection[TransactionIdentity]) -> None:
        """End each with EndTxn(abort) and its own epoch, which cannot hit a later holder."""
        end_transactions(self._wire, list(transactions), commit=False)

    def outcome(
        self, transactions: Sequence[PreparedTransaction]
    ) -> Mapping[TransactionIdentity, Outcome]:
        """Ask the log."""
        return outcomes(self._wire, transactions)

    def open_transactions(
        self, *, besides: Collection[TransactionIdentity] = ()
    ) -> tuple[OpenTransaction, ...]:
        """List the coordinators' open transactions under the prefix."""
        return list_open(self._wire, self._prefix, besides=besides)

    def delivered(
        self, spark: SparkSession, transactions: Sequence[PreparedTransaction]
    ) -> DataFrame:
        """Read back on the executors, one task a transaction."""
        wanted = [(msgspec.json.encode(transaction),) for transaction in transactions]
        frame = spark.createDataFrame(wanted, "transaction binary")
        return frame.repartition(max(1, len(wanted))).mapInArrow(
            _ReadBack(self._settings), DELIVERED_SCHEMA
        )

    def close(self) -> None:
        """Close the connections; transactions stay as they are."""
        self._wire.close()


@dataclass(frozen=True)
class _ReadBack:
    settings: KafkaSettings

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from airflow_eos.kafka.transactions.readback import SCHEMA, delivered_rows

        columns = ["value", "key", "topic", "partition", "headers", "timestamp"]
        timestamp = SCHEMA.get_field_index("timestamp")
        # Spark's Arrow reader takes timestamps in microseconds only (ArrowUtils.fromArrowType).
        as_spark = SCHEMA.set(timestamp, pa.field("timestamp", pa.timestamp("us", tz="UTC")))
        with Wire(self.settings) as wire:
            for batch in batches:
                transactions = [
                    msgspec.json.decode(encoded, type=PreparedTransaction)
                    for encoded in batch.column("transaction").to_pylist()
                ]
                for rows in delivered_rows(wire, transactions):
                    yield rows.cast(as_spark).select(columns)
