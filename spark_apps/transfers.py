"""Posts transfers between accounts, both sides of each, to Kafka and to PostgreSQL at once.

In: ``{"transfer": "t-1", "payer": "a-1", "payee": "a-2", "amount": 1250}``, in cents. Out: what the
payer loses and what the payee gets, as two events in Kafka, keyed by account, and as two rows of a
table, which must exist:

    CREATE TABLE postings (transfer text, account text, amount bigint)

Both sides come out of one row of the input, so they are in one task and in one transaction of each
system: nobody ever finds one side alone. The sum over all accounts is zero at every look at the
table; an account that is to begin with money gets it from another one, such as ``bank``.

A row that is no transfer goes to a topic of its own, in the same decision. The login of PostgreSQL
comes from the operator's ``participant_conn_ids={"books": …}`` or ``EOS_PARTICIPANTS_FILE``.
"""

from __future__ import annotations

import json

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from airflow_eos.sinks.app import App, argument_parser, run_app

TRANSFER = "transfer string, payer string, payee string, amount bigint"


def main() -> None:
    """Run until drained, or with ``--trigger available-now`` until all input is done."""
    parser = argument_parser("Post transfers with both sides.", prefix="transfers")
    parser.add_argument("--input-topic", default="transfers")
    parser.add_argument("--output-topic", default="postings")
    parser.add_argument("--dead-letter-topic", default="transfers.rejected")
    parser.add_argument("--table", default="postings")
    args = parser.parse_args()
    args.outputs = args.outputs or outputs(args.output_topic, args.table)
    app = App.of(args)
    spark = SparkSession.builder.appName("transfers").getOrCreate()
    query = app.start(
        postings(app.read(spark, args.input_topic), dead_letter_topic=args.dead_letter_topic),
        topic=args.output_topic,
        query_name="transfers",
    )
    query.awaitTermination()


def outputs(topic: str, table: str) -> str:
    """Return the app's two outputs as JSON, which configuration may replace."""
    return json.dumps(
        [
            {"name": "events", "kind": "kafka", "topic": topic, "rows": "events"},
            {"name": "books", "kind": "postgres", "table": table, "rows": "sides"},
        ]
    )


def postings(rows: DataFrame, *, dead_letter_topic: str) -> DataFrame:
    """Return for each row ``sides``, its two postings or null, and ``events``, its Kafka rows."""
    told = F.from_json(F.col("value").cast("string"), TRANSFER)
    read = rows.withColumn("told", told).withColumn("problem", _problem(F.col("told")))
    sides = F.array(_side("payer", -F.col("told.amount")), _side("payee", F.col("told.amount")))
    return read.withColumn("sides", F.when(F.col("problem").isNull(), sides)).select(
        "sides", F.coalesce(_events(), F.array(_letter(dead_letter_topic))).alias("events")
    )


def _problem(told: Column) -> Column:
    names = [told[name] for name in ("transfer", "payer", "payee")]
    return (
        F.when(told.isNull() | ~F.forall(F.array(*names), lambda name: name.isNotNull()), "no name")
        .when(told["payer"] == told["payee"], "payer and payee are one")
        .when(F.coalesce(told["amount"], F.lit(0)) <= 0, "no positive amount")
    )


def _side(of: str, amount: Column) -> Column:
    return F.struct(
        F.col("told.transfer").alias("transfer"),
        F.col(f"told.{of}").alias("account"),
        amount.alias("amount"),
    )


def _events() -> Column:
    """Return the Kafka rows of the sides, null without sides; a null topic is the sink's own."""
    return F.transform(
        "sides",
        lambda side: F.struct(
            side["account"].alias("key"),
            F.to_json(side).alias("value"),
            F.lit(None).cast("string").alias("topic"),
        ),
    )


def _letter(topic: str) -> Column:
    found = F.struct("problem", F.col("value").cast("string").alias("original"))
    return F.struct(
        F.col("key").cast("string").alias("key"),
        F.to_json(found).alias("value"),
        F.lit(topic).alias("topic"),
    )


if __name__ == "__main__":
    run_app(main)
