"""A table in a real database, a sink that delivers there, and a reader's eyes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

import pyarrow as pa
from obstore.store import MemoryStore

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.protocol.decision import PreparedWork
from airflow_eos.errors import EosError
from airflow_eos.kinds.sql.participant import OwnershipTable


class SqlWorld(ABC):
    """What the tests of every database look at.

    Attributes:
        tag: the table, and all that keeps it apart from those of other tests.
        book: what asks this database what waits and what is visible.
        names, works: the tables of what is owned, and of the witnesses, by ``works_key``.
        listing: a query whose answer is another one where a table was made.
        commits: what a connection sends to commit.
        ways: how the participant is reached.
        store: the checkpoint, where rows wait.
    """

    tag: str
    store: CheckpointStore
    server: Any
    book: ClassVar[type[OwnershipTable]]
    names: ClassVar[str]
    works: ClassVar[str]
    works_key: ClassVar[str]
    listing: ClassVar[str]

    @property
    @abstractmethod
    def commits(self) -> bytes: ...

    @property
    @abstractmethod
    def ways(self) -> tuple[dict[str, Any], ...]: ...

    @abstractmethod
    def through(self, port: int) -> dict[str, Any]:
        """What of a sink is to be another, to reach the server by this port."""

    @abstractmethod
    def prefixed(self, prefix: str) -> dict[str, Any]:
        """The same for another prefix."""

    @abstractmethod
    def halt(self) -> None:
        """The server dies."""

    @property
    @abstractmethod
    def sink(self) -> Any: ...

    @abstractmethod
    def sql(self, statement: str) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def tables(self) -> list[str]:
        """Tables that this package has made, of all pipelines."""

    def put_witness(self, key: str) -> None:
        self.sql(f"INSERT INTO {self.works} VALUES ('{key}', '{self.tag}.orders', 0, DEFAULT)")

    def lose_witness(self, key: str) -> None:
        self.sql(f"DELETE FROM {self.works} WHERE {self.works_key} = '{key}'")

    def sink_to(self, table: str) -> Any:
        return replace(self.sink, table=table, name="t", **self.prefixed(table))

    def holdings(self) -> list[str]:
        """Where rows wait: objects of this checkpoint, and tables beyond those that are fixed."""
        made = [each for each in self.tables() if not each.endswith(("names", "works"))]
        return [*made, *self.kept()]

    def kept(self) -> list[str]:
        """The objects of rows, by their paths."""
        return [each for each in self.store.below("eos/kept") if "/rows/" in each]

    def participant(self, **changes: Any) -> Any:
        return replace(self.sink, **changes).connect(timedelta(seconds=1))

    def prepare(self, *ids: int, task: int = 0, **changes: Any) -> PreparedWork:
        writer = replace(self.sink, **changes).opened(task, 0)
        writer.write(rows(*(ids or (1, 2, 3))))
        work: PreparedWork | None = writer.prepare("0" * 32)
        assert work is not None
        return work

    def seen(self) -> list[int]:
        return [found for (found,) in self.sql(f"SELECT id FROM {self.tag} ORDER BY id")]


def memory() -> CheckpointStore:
    return CheckpointStore(MemoryStore(), "memory://checkpoint")


def rows(*ids: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"id": pa.array(ids, pa.int64()), "name": [f"row {each}" for each in ids]}
    )


def written(sink: Any, **columns: Any) -> PreparedWork:
    """A task's work; where its rows are refused, the task gives up."""
    writer = sink.opened(0, 0)
    try:
        writer.write(pa.RecordBatch.from_pydict(columns))
        work: PreparedWork | None = writer.prepare("0" * 32)
    except EosError:
        writer.abort()
        raise
    assert work is not None
    return work
