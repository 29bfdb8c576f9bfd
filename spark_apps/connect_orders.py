"""Cleans orders through Spark Connect: exactly once, with the driver on the server's side.

The server was started with the jar of ``format("eos")`` and with Spark's Kafka connector; this
client needs ``pyspark-client`` alone (docs/howto/connect.md):

    python connect_orders.py sc://spark:15002 kafka:9092 s3a://lake/checkpoints/orders

It starts the query and waits. Where it is killed the query goes on; where the server was, or the
query failed, start it again: it goes on where it was, and no row comes twice.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession


def main(remote: str, kafka: str, checkpoint: str, trigger: str = "1 second") -> None:
    """Run the query; with the trigger ``available-now`` until all input is done."""
    spark = SparkSession.builder.remote(remote).getOrCreate()
    rows = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", kafka)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .load()
    )
    writer = (
        cleaned(rows)
        .writeStream.format("eos")
        .option("bootstrap_servers", kafka)
        .option("topic", "orders.clean")
        .option("transactional_id_prefix", "connect-orders")
        .option("trigger_interval", trigger)
        .option("checkpointLocation", checkpoint)
    )
    if trigger == "available-now":
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=trigger)
    writer.start().awaitTermination()


def cleaned(rows: DataFrame) -> DataFrame:
    """Return the orders that name a customer, by their customer."""
    customer = "get_json_object(CAST(value AS string), '$.customer_id')"
    return rows.where(f"{customer} IS NOT NULL").selectExpr(f"{customer} AS key", "value")


if __name__ == "__main__":
    main(*sys.argv[1:])
