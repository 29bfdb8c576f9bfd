"""One real server for all tests of PostgreSQL; they keep apart by tables and prefixes."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

import psycopg
import pytest

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.kinds.postgres.participant import PostgresOwnershipTable
from airflow_eos.kinds.postgres.sink import PostgresSink
from airflow_eos.kinds.sql.participant import OwnershipTable
from tests.integration.sql.world import SqlWorld, memory, rows
from tests.support.servers.postgres import EmbeddedPostgres

__all__ = ["World", "rows"]


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres() as running:
        yield running


@dataclass
class World(SqlWorld):
    book: ClassVar[type[OwnershipTable]] = PostgresOwnershipTable
    names: ClassVar[str] = "airflow_eos.names"
    works: ClassVar[str] = "airflow_eos.works"
    works_key: ClassVar[str] = "key"
    listing: ClassVar[str] = "SELECT count(*) FROM pg_class"

    server: EmbeddedPostgres
    two_phase: bool = True
    tag: str = field(default_factory=lambda: f"t{uuid.uuid4().hex[:8]}")
    columns: str = "id bigint, name text"
    store: CheckpointStore = field(default_factory=memory)

    def __post_init__(self) -> None:
        self.sql(f"CREATE TABLE {self.tag} ({self.columns})")

    @property
    def sink(self) -> PostgresSink:
        return PostgresSink(
            self.server.dsn,
            table=self.tag,
            gid_prefix=self.tag,
            two_phase=self.two_phase,
            name="orders",
            lock_timeout=timedelta(seconds=5),
            answer_within=timedelta(seconds=20),
            store=self.store,
        )

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.server.dsn, autocommit=True) as connection:
            found = connection.execute(statement)
            return found.fetchall() if found.description else []

    @property
    def commits(self) -> bytes:
        return b"COMMIT PREPARED" if self.two_phase else b"COMMIT\0"

    @property
    def ways(self) -> tuple[dict[str, Any], ...]:
        return {"orders": self.server.dsn}, {"postgres": {"dsn": self.server.dsn}}

    def through(self, port: int) -> dict[str, Any]:
        return {"dsn": self.server.dsn_of("postgres", port=port)}

    def prefixed(self, prefix: str) -> dict[str, Any]:
        return {"gid_prefix": prefix}

    def halt(self) -> None:
        self.server.stop(how=signal.SIGQUIT)

    def tables(self) -> list[str]:
        found = self.sql("SELECT tablename FROM pg_tables WHERE schemaname LIKE 'airflow\\_eos%'")
        return [name for (name,) in found]


@pytest.fixture(params=[True, False], ids=["two-phase", "staged"])
def world(server: EmbeddedPostgres, request: pytest.FixtureRequest) -> Iterator[World]:
    """In both forms; what a test leaves open is ended, for slots are few."""
    made = World(server, request.param)
    made.participant().close()  # the tables of all pipelines
    yield made
    end_all(made)


@pytest.fixture
def keeping(server: EmbeddedPostgres) -> World:
    """Rows that wait in the checkpoint."""
    made = World(server, two_phase=False)
    made.participant().close()
    return made


UNIQUE = "id bigint UNIQUE, name text"


@pytest.fixture
def staged(server: EmbeddedPostgres) -> World:
    made = World(server, two_phase=False, columns=UNIQUE)
    made.participant().close()
    return made


@pytest.fixture(params=[True, False], ids=["two-phase", "staged"])
def unique(server: EmbeddedPostgres, request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(server, request.param, columns=UNIQUE)
    made.participant().close()
    yield made
    end_all(made)


@pytest.fixture
def two_phase(server: EmbeddedPostgres) -> Iterator[World]:
    made = World(server)
    made.participant().close()
    yield made
    end_all(made)


def end_all(world: World) -> None:
    for (gid,) in world.sql("SELECT gid FROM pg_prepared_xacts"):
        world.sql(f"ROLLBACK PREPARED '{gid}'")
