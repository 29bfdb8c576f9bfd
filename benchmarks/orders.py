"""The orders ETL: parse orders, leave out those without quantity, enrich them, write them as JSON.

There are two versions, since Spark has two ways: its own JSON functions, and Arrow batches given to
Polars. Flink's version is the SQL of ``flink_job.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_REGIONS = {"DACH": ["DE", "AT", "CH"], "WEST": ["FR", "GB", "NL"], "AMERICAS": ["US"]}
_ORDER = pl.Struct(
    {
        "order_id": pl.String,
        "customer": pl.String,
        "country": pl.String,
        "currency": pl.String,
        "quantity": pl.Int64,
        "cents": pl.Int64,
    }
)
_WRITTEN = pa.schema([("key", pa.binary()), ("value", pa.binary())])


def in_arrow(rows: DataFrame) -> DataFrame:
    """Clean orders with Polars in Spark's Python workers. Malformed JSON fails the query."""
    return rows.select("key", "value").mapInArrow(clean, "key binary, value binary")


def clean(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Clean Arrow batches of orders with Polars."""
    order = pl.col("value").cast(pl.String).str.json_decode(_ORDER)
    region = pl.lit("OTHER")
    for name, countries in _REGIONS.items():
        region = pl.when(pl.col("country").is_in(countries)).then(pl.lit(name)).otherwise(region)
    cleaned = pl.struct(
        "order_id",
        "customer",
        region.alias("region"),
        "currency",
        (pl.col("quantity") * pl.col("cents")).alias("total_cents"),
    ).struct.json_encode()
    for batch in batches:
        rows = (
            pl.DataFrame(pa.Table.from_batches([batch]))
            .select("key", order.alias("o"))
            .unnest("o")
            .filter(pl.col("quantity") > 0)
            .select("key", cleaned.cast(pl.Binary).alias("value"))
        )
        yield from rows.to_arrow().cast(_WRITTEN).to_batches()


def in_sql(rows: DataFrame) -> DataFrame:
    """Clean orders with Spark's own JSON functions."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    schema = (
        "order_id string, customer string, country string, currency string, "
        "quantity int, cents bigint"
    )
    region = F.lit("OTHER")
    for name, countries in _REGIONS.items():
        region = F.when(F.col("o.country").isin(countries), name).otherwise(region)
    cleaned = F.struct(
        "o.order_id",
        "o.customer",
        region.alias("region"),
        "o.currency",
        (F.col("o.quantity") * F.col("o.cents")).alias("total_cents"),
    )
    return (
        rows.select("key", F.from_json(F.col("value").cast("string"), schema).alias("o"))
        .where("o.quantity > 0")
        .select("key", F.to_json(cleaned).alias("value"))
    )
