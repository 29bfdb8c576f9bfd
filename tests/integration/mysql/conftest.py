"""One real server for all tests of the MySQL sink; they keep apart by tables and prefixes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from airflow_eos.local.mariadb import EmbeddedMariaDb
from airflow_eos.participants.mysql.participant import MySqlParticipant
from airflow_eos.participants.mysql.session import asked, connected
from airflow_eos.protocol.work import PreparedWork
from airflow_eos.sinks.mysql import MySqlSink

pytest.importorskip("pymysql")


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedMariaDb]:
    with EmbeddedMariaDb() as running:
        yield running


@dataclass
class World:
    """A table, a sink that delivers there, and a reader's eyes."""

    server: EmbeddedMariaDb
    columns: str = "id bigint, name text"
    tag: str = field(default_factory=lambda: f"t{uuid.uuid4().hex[:8]}")

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
        )

    def participant(self, **changes: Any) -> MySqlParticipant:
        return replace(self.sink, **changes).connect(timedelta(seconds=1))

    def prepare(self, *ids: int, task: int = 0, **changes: Any) -> PreparedWork:
        writer = replace(self.sink, **changes).opened(task, 0)
        writer.write(rows(*(ids or (1, 2, 3))))
        work = writer.prepare("0" * 32)
        assert work is not None
        return work

    def write(self, **columns: Any) -> list[tuple[Any, ...]]:
        """At once; what a reader has."""
        writer = self.sink.opened(0, 0, transactional=False)
        writer.write(pa.RecordBatch.from_pydict(columns))
        writer.prepare("0" * 32)
        return self.sql(f"SELECT * FROM {self.tag}")

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(connected(self.server.url, lock_timeout_s=20, timeout_s=20)) as connection:
            return asked(connection, statement.replace("%", "%%"))

    def seen(self) -> list[int]:
        return [found for (found,) in self.sql(f"SELECT id FROM {self.tag} ORDER BY id")]

    def holdings(self) -> list[str]:
        """Tables in which rows wait, of all pipelines."""
        return [name for (name,) in self.sql("SHOW TABLES LIKE 'airflow\\_eos\\_staged\\_%'")]


def rows(*ids: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"id": pa.array(ids, pa.int64()), "name": [f"row {each}" for each in ids]}
    )


@pytest.fixture
def world(server: EmbeddedMariaDb) -> World:
    made = World(server)
    made.participant().close()  # the tables of all pipelines
    return made


@pytest.fixture
def unique(server: EmbeddedMariaDb) -> World:
    made = World(server, columns="id bigint UNIQUE, name text")
    made.participant().close()
    return made
