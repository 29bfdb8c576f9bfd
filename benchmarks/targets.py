"""Targets of a run of ``benchmarks.sinks``: made before it, read back after it, then removed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
from deltalake import DeltaTable

from benchmarks.stage import Stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 4
"""Partitions of the topics, and tasks of a batch, for every way."""
COLUMNS = (
    # By position, as `rows` writes fields of fixed width: parsing JSON would cost more than a sink.
    "CAST(CAST(substring(value, 16, 9) AS STRING) AS BIGINT) AS order_id",
    "CAST(substring(value, 39, 8) AS STRING) AS customer",
    "CAST(substring(value, 60, 2) AS STRING) AS country",
    "CAST(substring(value, 76, 3) AS STRING) AS currency",
    "CAST(CAST(substring(value, 92, 1) AS STRING) AS INT) AS quantity",
    "CAST(CAST(substring(value, 102, length(value) - 102) AS STRING) AS BIGINT) AS cents",
)
"""Expressions that read an order's fields from Kafka's value."""
NAMES = ("order_id", "customer", "country", "currency", "quantity", "cents")
_TABLE = (
    "order_id bigint, customer text, country text, currency text, quantity integer, cents bigint"
)
_SCHEMA = pa.schema(
    [
        ("order_id", pa.int64()),
        ("customer", pa.string()),
        ("country", pa.string()),
        ("currency", pa.string()),
        ("quantity", pa.int32()),
        ("cents", pa.int64()),
    ]
)
_SUMS = (
    # SQL for both Spark and PostgreSQL; each field is tied to its order's id.
    "count(*)",
    "sum(order_id)",
    "sum(order_id * CAST(substr(customer, 3) AS bigint))",
    "sum(order_id * ascii(country))",
    "sum(order_id * ascii(currency))",
    "sum(order_id * quantity)",
    "sum(order_id * cents)",
)
Sums = tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """The names of all that one run writes, made from the run's name."""

    stage: Stage
    dsn: str
    name: str

    @property
    def checkpoint(self) -> str:
        """Folder of Spark's checkpoint."""
        return str(self.stage.folder / f"checkpoint-{self.name}")

    @property
    def folder(self) -> Path:
        """Folder of the files."""
        return self.stage.folder / f"files-{self.name}"

    @property
    def lake(self) -> Path:
        """Folder of the Delta table."""
        return self.stage.folder / f"delta-{self.name}"

    @property
    def table(self) -> str:
        """Name of the table in PostgreSQL."""
        return self.name.replace("-", "_")

    @property
    def topic(self) -> str:
        """Name of the topic in Kafka."""
        return f"out-{self.name}"


@dataclass(frozen=True)
class Expected:
    """The sums expected of any output: of orders, and of a topic's rows and their hashes."""

    orders: Sums
    topic: Sums


def expected_of(session: SparkSession, stage: Stage, topic: str) -> Expected:
    """Sum up the input, read as a batch by Spark and by Kafka's own consumer."""
    source = session.read.format("kafka").option("kafka.bootstrap.servers", stage.bootstrap)
    orders = source.option("subscribe", topic).load().selectExpr(*COLUMNS)
    return Expected(sums_of(orders), _topic(stage, topic))


@dataclass(frozen=True)
class Target:
    """One kind of target.

    Attributes:
        make: creates it before a run.
        read: returns the sums that are visible after the run.
        expected: returns the sums that must be visible.
        drop: removes it, so that disk and page cache are free for the next run.
    """

    make: Callable[[Place], object]
    read: Callable[[SparkSession, Place], Sums]
    expected: Callable[[Expected], Sums]
    drop: Callable[[Place], object]


def sums_of(orders: DataFrame, *more: str) -> Sums:
    """Sum up orders; ``more`` are further sums, in SQL."""
    found = orders.selectExpr(*_SUMS, *more).first()
    assert found is not None  # an aggregate without groups has a row
    return tuple(int(each or 0) for each in found)


def _topic(stage: Stage, topic: str) -> Sums:
    found = stage.read(topic)
    return found["rows"], found["sum"]


def _execute(place: Place, statement: str) -> Sums:
    with psycopg.connect(place.dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        found = cursor.fetchone() if cursor.description else None
    return tuple(int(each or 0) for each in found or ())


def _delta_orders(session: SparkSession, place: Place) -> Sums:
    files = DeltaTable(str(place.lake)).file_uris()
    return sums_of(session.read.parquet(*files))


def _orders(expected: Expected) -> Sums:
    return expected.orders


TARGETS = {
    "postgres": Target(
        make=lambda place: _execute(place, f"CREATE TABLE {place.table} ({_TABLE})"),
        read=lambda _, place: _execute(place, f"SELECT {', '.join(_SUMS)} FROM {place.table}"),
        expected=_orders,
        drop=lambda place: _execute(place, f"DROP TABLE {place.table}"),
    ),
    "files": Target(
        make=lambda place: place.folder.mkdir(),
        read=lambda session, place: sums_of(session.read.parquet(str(place.folder))),
        expected=_orders,
        drop=lambda place: shutil.rmtree(place.folder),
    ),
    "delta": Target(
        make=lambda place: DeltaTable.create(str(place.lake), schema=_SCHEMA),
        read=_delta_orders,
        expected=_orders,
        drop=lambda place: shutil.rmtree(place.lake),
    ),
    "kafka": Target(
        make=lambda place: place.stage.topic(place.topic, PARTITIONS),
        read=lambda _, place: _topic(place.stage, place.topic),
        expected=lambda expected: expected.topic,
        drop=lambda place: place.stage.drop(place.topic),
    ),
}
