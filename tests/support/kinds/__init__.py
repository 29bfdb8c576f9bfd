"""Every kind that a decision can be about, in one table: a new one is a line here.

``tests/integration/kinds`` kills the driver, the tasks and the recovery of each at every place.
"""

from __future__ import annotations

from tests.support.kinds import apart, books, keeping, lakes, mysql, one, several, theirs
from tests.support.kinds.place import Kind, Place, Rows

__all__ = ["APART", "KINDS", "Kind", "Place", "Rows", "kind_called"]

KINDS: dict[str, Kind] = {
    "kafka": one.Kafka(),
    "files": one.Files(),
    "postgres": one.Postgres(),
    "postgres-staged": one.Postgres(two_phase=False),
    "mysql": mysql.MySql(),
    "delta": one.Delta(),
    "delta-upsert": one.DeltaUpserts(),
    "iceberg": one.Iceberg(),
    "iceberg-upsert": one.IcebergUpserts(),
    "wal": keeping.WriteAhead(),
    "upsert-postgres": keeping.UpsertToPostgres(),
    "upsert-mysql": keeping.UpsertToMySql(),
    "upsert-redis": keeping.UpsertToRedis(),
    "upsert-hbase": keeping.UpsertToHBase(),
    "of-a-user": theirs.Shelf(),
    "kafka+files": several.KafkaAndFiles(),
    "kafka+postgres": several.KafkaAndPostgres(),
    "kafka+postgres+delta": several.KafkaPostgresAndDelta(),
    "kafka+iceberg+delta": lakes.KafkaIcebergAndDelta(),
}

APART: dict[str, Kind] = {
    "random+postgres": apart.RandomAndPostgres(keep_rows=False),
    "random-kept+postgres": apart.RandomAndPostgres(keep_rows=True),
    "random-kept-delta": apart.RandomDelta(),
    "at-once-postgres": apart.AtOnceToPostgres(),
    "at-once-redis": apart.AtOnceToRedis(),
    "bookings": books.Bookings(),
    "bookings-everywhere": books.BookingsEverywhere(),
}
"""Those whose tests are their own."""


def kind_called(name: str) -> Kind:
    """One of either table."""
    return {**KINDS, **APART}[name]
