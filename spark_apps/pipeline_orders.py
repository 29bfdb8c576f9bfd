"""Cleans orders in a declarative pipeline: exactly once, each run until all input is read.

Beside this file stands its ``spark-pipeline.yml`` (docs/howto/connect.md):

    name: orders
    storage: s3a://lake/pipelines/orders
    libraries:
      - glob:
          include: pipeline_orders.py
    configuration:
      orders.kafka: kafka:9092

    spark-pipelines run --remote sc://spark:15002

A run that fails is started again, by Spark or by you, and goes on where it was.
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
KAFKA = str(spark.conf.get("orders.kafka"))

dp.create_sink(
    "orders_clean",
    format="eos",
    options={
        "bootstrap_servers": KAFKA,
        "topic": "orders.clean",
        "transactional_id_prefix": "pipeline-orders",
        "trigger_interval": "available-now",
    },
)


@dp.append_flow(target="orders_clean")
def cleaned() -> DataFrame:
    """The orders that name a customer, by their customer."""
    customer = "get_json_object(CAST(value AS string), '$.customer_id')"
    rows = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", KAFKA)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .load()
    )
    return rows.where(f"{customer} IS NOT NULL").selectExpr(f"{customer} AS key", "value")
