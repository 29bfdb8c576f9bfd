"""Double-entry bookings: one side of each in one output, the other in another, both in others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_eos import cuts
from airflow_eos.kinds.upsert.postgres import PostgresUpsert
from airflow_eos.sinks import (
    DeltaSink,
    FileSink,
    IcebergSink,
    MySqlSink,
    Output,
    PostgresSink,
    UpsertSink,
)
from tests.support.kinds.mysql import connect
from tests.support.kinds.one import Iceberg, Kafka, noted, waiting_in_postgres
from tests.support.kinds.place import Place, Row, Rows, Rowwise
from tests.support.topics import read_topic

_POSTING = "decode(value, 'utf-8') AS posting"
_DEBIT = f"struct({_POSTING}, 'debit' AS side)"
_CREDIT = f"struct({_POSTING}, 'credit' AS side)"
_BOTH = f"array({_DEBIT}, {_CREDIT})"
_COLUMNS = pa.schema([("posting", pa.string()), ("side", pa.string())])
Books = Mapping[str, Rows]


class Bookings(Rowwise):
    """Debits to the topic, credits to PostgreSQL, both to files."""

    servers: tuple[str, ...] = ("kafka", "postgres")

    def __init__(self) -> None:
        self._kafka = Kafka()

    def create(self, at: Place) -> None:
        with psycopg.connect(at.servers["postgres"], autocommit=True) as connection:
            connection.execute(f"CREATE TABLE {at.tag} (posting text, side text, eos_batch bigint)")

    def sink(self, at: Place) -> list[Output]:
        ledger = PostgresSink(
            at.servers["postgres"], at.tag, gid_prefix=at.tag, batch_column="eos_batch"
        )
        return [
            Output("debits", self._kafka.sink(at)),
            Output("credits", ledger, rows=_CREDIT),
            Output("files", FileSink(str(at.out / "files")), rows=_BOTH),
        ]

    def reach(self, at: Place) -> dict[str, Any]:
        return {"credits": at.servers["postgres"]}

    def read(self, at: Place) -> dict[str, Rows]:
        """What there is now, of each output by itself: a reader without cuts."""
        seen = read_topic(at.servers["kafka"], f"{at.tag}-out")
        return {
            "debits": Counter((value, "debit") for _, value in seen),
            "credits": in_postgres(at, at.tag, "true"),
            "files": in_files(map(str, (at.out / "files").glob("*.parquet"))),
        }

    def read_at(self, at: Place, cut: cuts.Cut) -> dict[str, Rows]:
        """The same, up to the cut."""
        topic = cuts.rows(cut, "debits", at.kafka or {})
        values = [value.decode() for each in topic for value in each["value"].to_pylist()]
        condition = cuts.condition(cut, "credits")
        return {
            "debits": Counter((value, "debit") for value in values),
            "credits": in_postgres(at, at.tag, condition),
            "files": in_files(cuts.files(cut, "files")),
        }

    def expected(self, fed: Iterable[Row]) -> dict[str, Rows]:
        postings = [value for _, value in fed]
        debit, credit = (Counter((each, side) for each in postings) for side in ("debit", "credit"))
        return {"debits": debit, "credits": credit, "files": debit + credit}

    def inputs(self, at: Place, fed: Any) -> dict[str, int]:
        del fed
        return {
            name: rows.total() // len({side for _, side in rows} or {""})
            for name, rows in self.read(at).items()
        }

    def left(self, at: Place) -> int:
        return self._kafka.left(at) + waiting_in_postgres(at)


class BookingsEverywhere(Bookings):
    """And to MySQL, to files of whole batches, to two kinds of tables, and as newest values."""

    servers = ("kafka", "postgres", "mariadb")

    def __init__(self) -> None:
        super().__init__()
        self._iceberg = Iceberg()

    def create(self, at: Place) -> None:
        from deltalake import DeltaTable

        super().create(at)
        with psycopg.connect(at.servers["postgres"], autocommit=True) as connection:
            connection.execute(
                f"CREATE TABLE {at.tag}_new (posting text PRIMARY KEY, side text, eos_version text)"
            )
        with closing(connect(at.servers["mariadb"])) as connection:
            connection.cursor().execute(
                f"CREATE TABLE {at.tag} (posting longtext, side longtext, eos_batch bigint)"
            )
        DeltaTable.create(str(at.out / "delta"), schema=_COLUMNS)
        with closing(self._iceberg._catalog(at)) as catalog:
            catalog.create_namespace("db")
            catalog.create_table("db.rows", _COLUMNS, location=f"file://{at.out}/iceberg")

    def sink(self, at: Place) -> list[Output]:
        mysql = MySqlSink(at.servers["mariadb"], at.tag, prefix=at.tag, batch_column="eos_batch")
        log = FileSink(str(at.out / "log"), publish="manifest")
        iceberg = IcebergSink("db.rows", self._iceberg._properties(at), application_id=at.tag)
        newest = UpsertSink(
            PostgresUpsert(at.servers["postgres"], f"{at.tag}_new"), key=["posting"]
        )
        return [
            *super().sink(at),
            Output("mysql", mysql, rows=_CREDIT),
            Output("log", log, rows=_BOTH),
            Output("delta", DeltaSink(str(at.out / "delta"), application_id=at.tag), rows=_BOTH),
            Output("iceberg", iceberg, rows=_DEBIT),
            Output("newest", newest, rows=_DEBIT),
        ]

    def reach(self, at: Place) -> dict[str, Any]:
        return {
            **super().reach(at),
            "mysql": at.servers["mariadb"],
            "iceberg": self._iceberg._properties(at),
            "newest": at.servers["postgres"],
        }

    def read(self, at: Place) -> dict[str, Rows]:
        from deltalake import DeltaTable

        with closing(self._iceberg._catalog(at)) as catalog:
            iceberg = in_arrow(catalog.load_table("db.rows").scan().to_arrow())
        return {
            **super().read(at),
            "mysql": in_mysql(at, "true"),
            "log": in_files(map(str, (at.out / "log").glob("*.parquet"))),
            "delta": in_arrow(DeltaTable(str(at.out / "delta")).to_pyarrow_table()),
            "iceberg": iceberg,
        }

    def read_at(self, at: Place, cut: cuts.Cut) -> dict[str, Rows]:
        with closing(self._iceberg._catalog(at)) as catalog:
            iceberg = in_arrow(cuts.dataset(cut, "iceberg", catalog=catalog).to_table())
        return {
            **super().read_at(at, cut),
            "mysql": in_mysql(at, cuts.condition(cut, "mysql")),
            "log": in_files(cuts.files(cut, "log")),
            "delta": in_arrow(cuts.dataset(cut, "delta").to_table()),
            "iceberg": iceberg,
        }

    def expected(self, fed: Iterable[Row]) -> dict[str, Rows]:
        of = super().expected(fed)
        return {
            **of,
            "mysql": of["credits"],
            "log": of["files"],
            "delta": of["files"],
            "iceberg": of["debits"],
        }

    def left(self, at: Place) -> int:
        return super().left(at) + noted(at)


def unbalanced(books: Books) -> list[str]:
    """Outputs in which a side of a posting is missing that another output has."""
    sides = {
        f"{name} ({side})": Counter(
            {posting: count for (posting, its), count in rows.items() if its == side}
        )
        for name, rows in books.items()
        for side in ("debit", "credit")
        if name in ("files", "log", "delta")
        or side == ("credit" if name in ("credits", "mysql") else "debit")
    }
    most = max(sides.values(), key=Counter.total)
    return [name for name, found in sides.items() if found != most]


def in_postgres(at: Place, table: str, condition: str) -> Rows:
    with psycopg.connect(at.servers["postgres"]) as connection:
        asked = f"SELECT posting, side FROM {table} WHERE {condition}"
        return Counter(connection.execute(asked).fetchall())


def in_mysql(at: Place, condition: str) -> Rows:
    with closing(connect(at.servers["mariadb"])) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT posting, side FROM {at.tag} WHERE {condition}")
        return Counter(cursor.fetchall())


def in_files(paths: Iterable[str]) -> Rows:
    found: Rows = Counter()
    for path in paths:
        found += in_arrow(pq.ParquetFile(Path(path)).read())
    return found


def in_arrow(table: pa.Table) -> Rows:
    return Counter(zip(*(table[name].to_pylist() for name in ("posting", "side")), strict=True))
