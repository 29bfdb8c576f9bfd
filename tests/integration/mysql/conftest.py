"""One real server for all tests of the MySQL sink; they keep apart by tables and prefixes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.kinds.mysql.participant import MySqlOwnershipTable
from airflow_eos.kinds.mysql.session import asked, connected
from airflow_eos.kinds.mysql.sink import MySqlSink
from airflow_eos.kinds.sql.participant import OwnershipTable
from tests.integration.sql.world import SqlWorld, memory, rows
from tests.support.mysql import mysql_server
from tests.support.servers.mariadb import EmbeddedMariaDb

__all__ = ["World", "rows"]

pytest.importorskip("pymysql")


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedMariaDb]:
    with mysql_server() as running:
        yield running


@dataclass
class World(SqlWorld):
    book: ClassVar[type[OwnershipTable]] = MySqlOwnershipTable
    names: ClassVar[str] = "airflow_eos_names"
    works: ClassVar[str] = "airflow_eos_works"
    works_key: ClassVar[str] = "work_key"
    listing: ClassVar[str] = "SHOW TABLES"

    server: EmbeddedMariaDb
    columns: str = "id bigint, name text"
    tag: str = field(default_factory=lambda: f"t{uuid.uuid4().hex[:8]}")
    store: CheckpointStore = field(default_factory=memory)

    def __post_init__(self) -> None:
        self.sql(f"CREATE TABLE {self.tag} ({self.columns}) CHARACTER SET utf8mb4")

    @property
    def sink(self) -> MySqlSink:
        return MySqlSink(
            self.server.url,
            table=self.tag,
            prefix=self.tag,
            name="orders",
            lock_timeout=timedelta(seconds=5),
            answer_within=timedelta(seconds=20),
            store=self.store,
        )

    def write(self, **columns: Any) -> list[tuple[Any, ...]]:
        """At once; what a reader has."""
        writer = self.sink.opened(0, 0, transactional=False)
        writer.write(pa.RecordBatch.from_pydict(columns))
        writer.prepare("0" * 32)
        return self.sql(f"SELECT * FROM {self.tag}")

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(connected(self.server.url, lock_timeout_s=20, timeout_s=20)) as connection:
            return asked(connection, statement.replace("%", "%%"))

    @property
    def commits(self) -> bytes:
        return b"\x03COMMIT"

    @property
    def ways(self) -> tuple[dict[str, Any], ...]:
        return {"orders": self.server.url}, {"mysql": self.server.url}

    def through(self, port: int) -> dict[str, Any]:
        return {"url": self.server.url.replace(f"{self.server.port}", f"{port}")}

    def prefixed(self, prefix: str) -> dict[str, Any]:
        return {"prefix": prefix}

    def halt(self) -> None:
        self.server.kill()

    def tables(self) -> list[str]:
        names = (name for (name,) in self.sql("SHOW TABLES"))
        return [name for name in names if name.startswith("airflow_eos_")]


@pytest.fixture
def world(server: EmbeddedMariaDb) -> World:
    made = World(server)
    made.participant().close()  # the tables of all pipelines
    return made


@pytest.fixture
def keeping(world: World) -> World:
    return world


@pytest.fixture
def unique(server: EmbeddedMariaDb) -> World:
    made = World(server, columns="id bigint UNIQUE, name text")
    made.participant().close()
    return made


@pytest.fixture
def staged(unique: World) -> World:
    return unique
