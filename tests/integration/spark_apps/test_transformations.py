"""What the example apps make of their rows; a real Spark, no Kafka."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_eos.kafka.columns import SCHEMA as KAFKA
from demo.orders import orders
from spark_apps import orders_arrow
from spark_apps.avro_windows import valid_identities
from spark_apps.orders_etl import clean_orders
from spark_apps.page_views import count_views

ORDER = {
    "order_id": "o-1",
    "customer_id": "c-7",
    "placed_at": "2026-11-20T10:15:30.123Z",
    "country": "DE",
    "currency": "USD",
    "email": "  Ada@Example.COM ",
    "items": [
        {"sku": "sku-1", "quantity": 2, "unit_price": 19.9},
        {"sku": "sku-2", "quantity": 1, "unit_price": 0.2},
    ],
}
SCHEMA = (
    "key string, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "headers array<struct<key:string,value:binary>>"
)

MALFORMED = [
    ("not json", "not an order"),
    ('{"order_id": "o-1", "custom', "not an order"),
    ({**ORDER, "order_id": None}, "not an order"),
    ({**ORDER, "items": []}, "no items"),
    ({**ORDER, "items": None}, "no items"),
    (
        {**ORDER, "items": [{"sku": "s", "quantity": -1, "unit_price": 1}]},
        "an item without a positive quantity and a price",
    ),
    (
        {**ORDER, "items": [{"sku": "s", "quantity": 1}]},
        "an item without a positive quantity and a price",
    ),
    ({**ORDER, "items": [None]}, "an item without a positive quantity and a price"),
    ({**ORDER, "currency": "XXX"}, "unknown currency"),
    ({**ORDER, "currency": None}, "unknown currency"),
    ({**ORDER, "placed_at": "yesterday"}, "placed_at is not a time"),
    ("", "not an order"),
]


def rows(spark: SparkSession, *values: object) -> DataFrame:
    written = datetime(2026, 11, 20, tzinfo=UTC)
    return spark.createDataFrame(
        [
            (
                f"c-{at}",
                value.encode() if isinstance(value, str) else json.dumps(value).encode(),
                "orders",
                0,
                at,
                written,
                [("order-id", f"o-{at}".encode())],
            )
            for at, value in enumerate(values)
        ],
        SCHEMA,
    )


@pytest.mark.long
def test_an_order_is_cleaned_and_enriched(spark):
    [row] = clean_orders(rows(spark, ORDER), dead_letter_topic="bad").collect()

    assert row.topic is None
    assert row.key == "c-0"
    assert [tuple(header) for header in row.headers] == [("order-id", b"o-0")]
    assert json.loads(row.value) == {
        "order_id": "o-1",
        "customer_id": "c-7",
        "placed_at": "2026-11-20T10:15:30.123Z",
        "email": "ada@example.com",
        "region": "DACH",
        "pieces": 3,
        "currency": "USD",
        "total": 40.0,
        "total_eur": 36.8,
    }


@pytest.mark.parametrize(("value", "problem"), MALFORMED)
def test_a_malformed_row_goes_to_the_dead_letters_with_its_reason_and_place(spark, value, problem):
    [row] = clean_orders(rows(spark, value), dead_letter_topic="bad").collect()

    letter = json.loads(row.value)
    assert row.topic == "bad"
    assert row.key == "c-0"
    assert letter["problem"] == problem
    assert letter["original"] == (value if isinstance(value, str) else json.dumps(value))
    assert (letter["topic"], letter["partition"], letter["offset"]) == ("orders", 0, 0)


def test_every_row_in_is_one_row_out_in_the_same_order(spark):
    values = [ORDER if at % 3 else "bad" for at in range(50)]

    out = clean_orders(rows(spark, *values), dead_letter_topic="bad").collect()

    assert [row.key for row in out] == [f"c-{at}" for at in range(50)]


@pytest.mark.long
def test_the_arrow_form_of_the_app_gives_the_very_bytes_that_sparks_form_gives(spark):
    """So a pipeline can go from one to the other, and a reader of its topics sees no difference."""
    values = [order.value.decode() for order in orders(2_000)]
    values += [value if isinstance(value, str) else json.dumps(value) for value, _ in MALFORMED]
    values += [
        json.dumps({**ORDER, "email": None, "country": None, "extra": {"deep": [1, None]}}),
        json.dumps({**ORDER, "placed_at": "2026-11-20T12:15:30.123456+02:00"}),
        json.dumps({**ORDER, "order_id": 'ö "quoted"\n', "email": " Ünïcode@Example.COM"}),
        json.dumps({**ORDER, "items": [{"sku": "s", "quantity": 3, "unit_price": 0}]}),
        # More pieces than an int has, and a total beyond decimal(20, 2): an error in each try.
        json.dumps(
            {**ORDER, "items": 9 * [{"quantity": 2_000_000_000, "unit_price": 99999999.99}]}
        ),
    ]
    told = rows(spark, *values)
    expected = clean_orders(told, dead_letter_topic="bad").collect()
    read = pa.RecordBatch.from_pylist([row.asDict(recursive=True) for row in told.collect()], KAFKA)

    [written] = orders_arrow.cleaned(iter([read]), dead_letter_topic="bad")

    found = written.to_pylist()
    assert [(row["topic"], row["value"].decode()) for row in found] == [
        (row.topic, row.value) for row in expected
    ]
    for name in ("key", "headers", "timestamp"):
        assert written[name].equals(read[name])


@pytest.mark.long
def test_page_views_are_counted_for_each_app_and_other_rows_are_not_views(spark):
    seen = rows(spark, {"app": "shop"}, {"app": "blog"}, "noise", {"page": 1}, {"app": "shop"})

    counts = {row.key: json.loads(row.value) for row in count_views(seen).collect()}

    assert counts == {"shop": {"app": "shop", "views": 2}, "blog": {"app": "blog", "views": 1}}


def test_only_numbers_of_18_digits_are_kept_and_counted_in_windows_of_20_seconds(spark):
    def person(number, second):
        return (
            {"identifyNumber": number, "seenAt": datetime(2026, 11, 20, 10, 0, second, 0, UTC)},
        )

    seen = spark.createDataFrame(
        [
            person("1" * 18, 1),
            person("1" * 18, 19),
            person("1" * 18, 21),
            person("1" * 17, 2),
            person(None, 3),
            (None,),
        ],
        "person struct<identifyNumber: string, seenAt: timestamp>",
    )

    out = [json.loads(row.value) for row in valid_identities(seen).collect()]

    assert sorted((row["start"], row["seen"]) for row in out) == [
        ("2026-11-20T10:00:00.000Z", 2),
        ("2026-11-20T10:00:20.000Z", 1),
    ]
