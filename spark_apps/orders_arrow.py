"""Cleans orders as ``orders_etl.py`` does, but in Arrow: no row passes through the JVM.

Copy this file and change ``cleaned``. Tasks fetch the rows themselves, as Arrow batches; Spark
plans the offsets and keeps the checkpoint, and needs no Kafka connector. It takes Spark 4.2, and
the extra ``fast`` on the executors. docs/arrow-source.md says when this is the cheaper way.

As in ``orders_etl.py``, both outputs are one batch of rows with a ``topic`` column, the
result depends on the input alone, and rows keep the key, the headers and the time of their order.

    spark-submit orders_arrow.py \
        --bootstrap-servers localhost:9092 --checkpoint /data/checkpoints/orders-etl
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from airflow_eos.sinks.app import App, argument_parser, run_app
from airflow_eos.sources import ArrowKafkaSource

EUR_RATES = {"EUR": "1.0000", "USD": "0.9200", "GBP": "1.1700", "CHF": "1.0400", "PLN": "0.2300"}
REGIONS = {"DE": "DACH", "AT": "DACH", "CH": "DACH", "FR": "WEST", "GB": "WEST", "US": "AMERICAS"}
READ = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
WRITTEN = (
    "key binary, value binary, topic string, headers array<struct<key: string, value: binary>>, "
    "timestamp timestamp"
)
CENT = Decimal("0.01")
MOST_PIECES, TOO_DEAR = 2**31 - 1, Decimal("99999999.995")  # of an item, as in Spark's form


def main() -> None:
    """Run until drained, or with ``--trigger available-now`` until all input is done."""
    parser = argument_parser("Clean and enrich orders, in Arrow.", prefix="orders-etl")
    parser.add_argument("--input-topic", default="orders")
    parser.add_argument("--output-topic", default="orders.clean")
    parser.add_argument("--dead-letter-topic", default="orders.rejected")
    args = parser.parse_args()
    app = App.of(args)
    SparkSession.builder.appName("orders-etl").getOrCreate()  # the query runs in the active session
    source = (
        ArrowKafkaSource.of_app(app, args.input_topic)
        .select(*READ)
        .map(partial(cleaned, dead_letter_topic=args.dead_letter_topic), WRITTEN)
    )
    app.start(source, topic=args.output_topic, query_name="orders-etl").awaitTermination()


def cleaned(
    batches: Iterator[pa.RecordBatch], *, dead_letter_topic: str
) -> Iterator[pa.RecordBatch]:
    """Yield one row for each row of the input; a null ``topic`` is the sink's own."""
    decode, encode = _order_decoder(), msgspec.json.Encoder(decimal_format="number").encode
    for batch in batches:
        values, topics = [], []
        for at, value in enumerate(batch["value"].to_pylist()):
            order = decode(value or b"")
            problem = _problem(order)
            told = _cleaned(order) if problem is None else _rejected(problem, value, batch, at)
            values.append(encode(told))
            topics.append(None if problem is None else dead_letter_topic)
        columns = {
            "key": batch["key"],
            "value": pa.array(values, pa.binary()),
            "topic": pa.array(topics, pa.string()),
            "headers": batch["headers"],
            "timestamp": batch["timestamp"],
        }
        yield pa.RecordBatch.from_pydict(columns)


def _order_decoder() -> Callable[[bytes], Any]:
    """Return a decoder, which decodes what is no JSON of an order into an order without fields.

    The classes are made in here: a script's own classes cannot be pickled into a task.
    """
    item = msgspec.defstruct(
        "Item", [("quantity", int | None, None), ("unit_price", Decimal | None, None)]
    )
    names = ("order_id", "customer_id", "placed_at", "country", "currency", "email")
    order = msgspec.defstruct(
        "Order",
        [*((name, str | None, None) for name in names), ("items", list[item | None] | None, None)],  # type: ignore[valid-type]
    )
    decoder = msgspec.json.Decoder(order)

    def decode(value: bytes) -> Any:
        try:
            return decoder.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return order()

    return decode


def _problem(order: Any) -> str | None:
    """Return what is wrong with an order; None where nothing is."""
    if order.order_id is None or order.customer_id is None:
        return "not an order"
    if not order.items:
        return "no items"
    if not all(map(_is_sellable, order.items)):
        return "an item without a positive quantity and a price"
    if order.currency not in EUR_RATES:
        return "unknown currency"
    if _placed_at(order) is None:
        return "placed_at is not a time"
    return None


def _is_sellable(item: Any) -> bool:
    if item is None or item.quantity is None or item.unit_price is None:
        return False
    # A text may say NaN, which cannot be compared, or more digits than can be reckoned with.
    price_fits = item.unit_price.is_finite() and 0 <= item.unit_price < TOO_DEAR
    return bool(0 < item.quantity <= MOST_PIECES and price_fits)


def _placed_at(order: Any) -> str | None:
    """Return the order's time in UTC, to the millisecond; None where it is no time."""
    try:
        at = datetime.fromisoformat(order.placed_at or "")
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):  # in UTC it may be of the year 0 or 10000
        return None
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z"


def _cleaned(order: Any) -> dict[str, Any]:
    total = sum((_money(each.unit_price) * each.quantity for each in order.items), Decimal(0))
    rate = Decimal(EUR_RATES[order.currency])
    found = {
        "order_id": order.order_id,
        "customer_id": order.customer_id,
        "placed_at": _placed_at(order),
        "email": None if order.email is None else order.email.strip(" ").lower(),
        "region": REGIONS.get(order.country, "OTHER"),
        "pieces": sum(each.quantity for each in order.items),
        "currency": order.currency,
        "total": total,
        "total_eur": _money(total * rate),
    }
    return {name: value for name, value in found.items() if value is not None}


def _money(amount: Decimal) -> Decimal:
    return amount.quantize(CENT, ROUND_HALF_UP)


def _rejected(problem: str, value: bytes | None, batch: pa.RecordBatch, at: int) -> dict[str, Any]:
    """Return the rejected row as it came, the problem, and its place in the input."""
    found = {
        "problem": problem,
        "original": None if value is None else value.decode(errors="replace"),
        "topic": batch["topic"][at].as_py(),
        "partition": batch["partition"][at].as_py(),
        "offset": batch["offset"][at].as_py(),
    }
    return {name: told for name, told in found.items() if told is not None}


if __name__ == "__main__":
    run_app(main)
