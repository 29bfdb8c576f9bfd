"""Cleans and enriches orders, and sends malformed ones to a dead-letter topic: exactly once.

Copy this file and change ``clean_orders``. It shows three things that matter:

- Both outputs are one DataFrame with a ``topic`` column. So one decision covers them, and after
  any crash a row is in exactly one of the two topics.
- The result depends on the input alone: no clock, no random number, no look-up that can change.
  A batch whose promise timed out is evaluated again, and must give the same rows.
- Rows keep the key of their order, the customer, and its headers. One task reads one partition of
  the input in order, so the orders of a customer stay in order.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 orders_etl.py \
        --bootstrap-servers localhost:9092 --checkpoint /data/checkpoints/orders-etl
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from airflow_eos.sinks.app import App, argument_parser, run_app

ORDER = """
    order_id string, customer_id string, placed_at string, country string, currency string,
    email string, items array<struct<sku: string, quantity: int, unit_price: decimal(10, 2)>>
"""
EUR_RATES = {"EUR": "1.0000", "USD": "0.9200", "GBP": "1.1700", "CHF": "1.0400", "PLN": "0.2300"}
REGIONS = {"DE": "DACH", "AT": "DACH", "CH": "DACH", "FR": "WEST", "GB": "WEST", "US": "AMERICAS"}


def main() -> None:
    """Run until drained, or with ``--trigger available-now`` until all input is done."""
    parser = argument_parser("Clean and enrich orders.", prefix="orders-etl")
    parser.add_argument("--input-topic", default="orders")
    parser.add_argument("--output-topic", default="orders.clean")
    parser.add_argument("--dead-letter-topic", default="orders.rejected")
    args = parser.parse_args()
    app = App.of(args)
    spark = (
        SparkSession.builder.appName("orders-etl")
        # Times are read and written in UTC wherever the executors stand.
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    query = app.start(
        clean_orders(app.read(spark, args.input_topic), dead_letter_topic=args.dead_letter_topic),
        topic=args.output_topic,
        query_name="orders-etl",
    )
    query.awaitTermination()


def clean_orders(rows: DataFrame, *, dead_letter_topic: str) -> DataFrame:
    """Return one row for each row of the input; a null ``topic`` is the sink's own."""
    order = F.from_json(F.col("value").cast("string"), ORDER)
    checked = rows.withColumn("order", order).withColumn("problem", _problem(F.col("order")))
    rejected = F.col("problem").isNotNull()
    return checked.select(
        "key",
        F.when(rejected, _rejected()).otherwise(_cleaned()).alias("value"),
        F.when(rejected, F.lit(dead_letter_topic)).alias("topic"),
        "headers",
        "timestamp",
    )


def _problem(order: Column) -> Column:
    """Return what is wrong with an order, as text; null where nothing is."""
    items = order["items"]
    return (
        F.when(order["order_id"].isNull() | order["customer_id"].isNull(), "not an order")
        .when(F.coalesce(F.size(items), F.lit(0)) < 1, "no items")
        .when(
            F.size(F.filter(items, _sellable)) < F.size(items),
            "an item without a positive quantity and a price",
        )
        .when(_look_up(EUR_RATES, order["currency"]).isNull(), "unknown currency")
        .when(_placed_at(order).isNull(), "placed_at is not a time")
    )


def _sellable(item: Column) -> Column:
    return (item["quantity"] > 0) & (item["unit_price"] >= 0)


def _placed_at(order: Column) -> Column:
    return F.try_to_timestamp(order["placed_at"])


def _cleaned() -> Column:
    order = F.col("order")
    # Sums are wider than any message has items for: one that overflows would end each try.
    total = F.aggregate(
        order["items"],
        F.lit(0).cast("decimal(27, 2)"),
        lambda total, item: (total + item["quantity"] * item["unit_price"]).cast("decimal(27, 2)"),
    )
    rate = _look_up(EUR_RATES, order["currency"]).cast("decimal(10, 4)")
    return F.to_json(
        F.struct(
            order["order_id"].alias("order_id"),
            order["customer_id"].alias("customer_id"),
            _placed_at(order).alias("placed_at"),
            F.lower(F.trim(order["email"])).alias("email"),
            F.coalesce(_look_up(REGIONS, order["country"]), F.lit("OTHER")).alias("region"),
            F.aggregate(
                order["items"],
                F.lit(0).cast("bigint"),
                lambda count, item: count + item["quantity"],
            ).alias("pieces"),
            order["currency"].alias("currency"),
            total.alias("total"),
            F.round(total * rate, 2).alias("total_eur"),
        )
    )


def _rejected() -> Column:
    """Return the rejected row as it came, the problem, and its place in the input."""
    return F.to_json(
        F.struct(
            F.col("problem"),
            F.col("value").cast("string").alias("original"),
            F.col("topic"),
            F.col("partition"),
            F.col("offset"),
        )
    )


def _look_up(table: dict[str, str], key: Column) -> Column:
    entries = [F.lit(text) for entry in table.items() for text in entry]
    return F.try_element_at(F.create_map(*entries), key)


if __name__ == "__main__":
    run_app(main)
