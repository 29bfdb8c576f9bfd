"""The ways of ``benchmarks.sinks`` to write rows: our sinks, and what Spark's users use today."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
from deltalake import write_deltalake
from psycopg.conninfo import conninfo_to_dict

from airflow_eos.sinks import (
    DeltaSink,
    FileSink,
    KafkaSink,
    Output,
    PostgresSink,
    start_exactly_once,
)
from benchmarks.targets import NAMES, PARTITIONS, Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_eos.core.delivery.port import Sink
    from airflow_eos.core.protocol.decision import Guarantee

_CODEC = "snappy"
"""Codec for all: Spark's and delta-rs's default; ours is zstd, but codecs are not compared."""
_TRIGGER = {"availableNow": True}
JDBC_TUNED = {"batchsize": "10000", "reWriteBatchedInserts": "true"}


@dataclass(frozen=True)
class Way:
    """One way to write rows.

    Attributes:
        label: the name that people read.
        start: starts a query on rows with Kafka's key and value and the orders' columns.
        targets: the ``TARGETS`` that it writes to.
    """

    label: str
    start: Callable[[DataFrame, Place], Any]
    targets: tuple[str, ...]


def _ours(
    make: Callable[[Place], Sink | Sequence[Output]],
    columns: Sequence[str] = NAMES,
    guarantee: Guarantee = "exactly_once",
) -> Callable[[DataFrame, Place], Any]:
    def start(rows: DataFrame, place: Place) -> Any:
        return start_exactly_once(
            rows.select(*columns),
            make(place),
            checkpoint_location=place.checkpoint,
            trigger=_TRIGGER,
            guarantee=guarantee,
        )

    return start


def _postgres(place: Place, *, two_phase: bool = True) -> PostgresSink:
    return PostgresSink(
        place.dsn,
        table=place.table,
        gid_prefix=place.name,
        two_phase=two_phase,
        tasks=PARTITIONS,
    )


def _files(place: Place) -> FileSink:
    return FileSink(str(place.folder), compression=_CODEC)


def _delta(place: Place) -> DeltaSink:
    return DeltaSink(str(place.lake), application_id=place.name, compression=_CODEC)


def _kafka(place: Place) -> KafkaSink:
    return KafkaSink(place.stage.bootstrap, topic=place.topic, transactional_id_prefix=place.name)


def _several(place: Place) -> list[Output]:
    return [
        Output("topic", _kafka(place), rows=["key", "value"]),
        Output("table", _postgres(place), rows=NAMES),
        Output("files", _files(place), rows=NAMES),
    ]


def _spark(format_: str) -> Callable[[DataFrame, Place], Any]:
    """Return a start for one of Spark's own streaming sinks."""

    def start(rows: DataFrame, place: Place) -> Any:
        return (
            rows.select(*NAMES)
            .writeStream.format(format_)
            .option("path", str(place.folder))
            .option("compression", _CODEC)
            .option("checkpointLocation", place.checkpoint)
            .trigger(**_TRIGGER)
            .start()
        )

    return start


def _each_batch(write: Callable[[Place, DataFrame], None]) -> Callable[[DataFrame, Place], Any]:
    """Return a start for ``foreachBatch`` with ``write``, at least once."""

    def start(rows: DataFrame, place: Place) -> Any:
        return (
            rows.select(*NAMES)
            .writeStream.foreachBatch(lambda batch, _: write(place, batch))
            .option("checkpointLocation", place.checkpoint)
            .trigger(**_TRIGGER)
            .start()
        )

    return start


def _by_jdbc(options: Mapping[str, str], place: Place, batch: DataFrame) -> None:
    login = conninfo_to_dict(place.dsn)
    batch.write.format("jdbc").options(
        url=f"jdbc:postgresql://{login['host']}:{login['port']}/{login['dbname']}",
        driver="org.postgresql.Driver",
        user=login["user"],
        password=login["password"],
        dbtable=place.table,
        **options,
    ).mode("append").save()


def _by_psycopg(
    insert: Callable[[str, str, Iterable[Any]], None], place: Place, batch: DataFrame
) -> None:
    batch.foreachPartition(partial(insert, place.dsn, place.table))


def _executemany(dsn: str, table: str, rows: Iterable[Any]) -> None:
    values = ", ".join(["%s"] * len(NAMES))
    with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO {table} VALUES ({values})".encode(), rows)


def _copy(dsn: str, table: str, rows: Iterable[Any]) -> None:
    with (
        psycopg.connect(dsn) as connection,
        connection.cursor() as cursor,
        cursor.copy(f"COPY {table} FROM STDIN".encode()) as copy,
    ):
        for row in rows:
            copy.write_row(row)


def _by_delta_rs(place: Place, batch: DataFrame) -> None:
    write_deltalake(str(place.lake), batch.toArrow(), mode="append")


WAYS = {
    "noop": Way("Spark reading only (noop)", _spark("noop"), ()),
    "postgres": Way("PostgreSQL: ours, prepared transactions", _ours(_postgres), ("postgres",)),
    "postgres_staged": Way(
        "PostgreSQL: ours, staged",
        _ours(partial(_postgres, two_phase=False)),
        ("postgres",),
    ),
    "postgres_at_least_once": Way(
        "PostgreSQL: ours, at least once",
        _ours(_postgres, guarantee="at_least_once"),
        ("postgres",),
    ),
    "jdbc": Way(
        "PostgreSQL: Spark's JDBC writer", _each_batch(partial(_by_jdbc, {})), ("postgres",)
    ),
    "jdbc_tuned": Way(
        "PostgreSQL: Spark's JDBC writer, tuned",
        _each_batch(partial(_by_jdbc, JDBC_TUNED)),
        ("postgres",),
    ),
    "executemany": Way(
        "PostgreSQL: psycopg, executemany in each partition",
        _each_batch(partial(_by_psycopg, _executemany)),
        ("postgres",),
    ),
    "psycopg_copy": Way(
        "PostgreSQL: psycopg, COPY row by row in each partition",
        _each_batch(partial(_by_psycopg, _copy)),
        ("postgres",),
    ),
    "files": Way("Files: ours", _ours(_files), ("files",)),
    "spark_files": Way("Files: Spark's own sink", _spark("parquet"), ("files",)),
    "delta": Way("Delta: ours", _ours(_delta), ("delta",)),
    "write_deltalake": Way(
        "Delta: delta-rs's write_deltalake", _each_batch(_by_delta_rs), ("delta",)
    ),
    "kafka": Way("Kafka: ours", _ours(_kafka, ("key", "value")), ("kafka",)),
    "several": Way(
        "Kafka, PostgreSQL and files: ours, one decision",
        _ours(_several, ("key", "value", *NAMES)),
        ("kafka", "postgres", "files"),
    ),
}
