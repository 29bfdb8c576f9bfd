"""A kind as a user writes it: rows into a SQLite file. Nothing of the package names it.

Recovery finds ``connect`` by the entry point in ``installed/``. Rows wait in the table ``staged``;
a commit writes the witness and moves them, in one transaction.
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_eos.core.failpoints import failpoint  # a test stops the world there
from airflow_eos.sinks.port import (
    CheckpointStore,
    Decision,
    Member,
    OpenWork,
    OperatorRuling,
    Outcome,
    Owner,
    Ownership,
    OwnershipFile,
    PreparedWork,
    Promise,
    WorkIdentity,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

KIND = "shelf"


@contextmanager
def opened(file: str) -> Iterator[sqlite3.Connection]:
    """One transaction, alone."""
    with closing(sqlite3.connect(file, timeout=60, isolation_level=None)) as base, base:
        base.execute("BEGIN IMMEDIATE")
        for table in ("staged", "rows"):
            base.execute(f"CREATE TABLE IF NOT EXISTS {table} (work TEXT, key BLOB, value BLOB)")
        base.execute("CREATE TABLE IF NOT EXISTS ended (work TEXT PRIMARY KEY)")
        yield base


class ShelfParticipant:
    def __init__(self, name: str, file: str) -> None:
        self._name = name
        self._file = file
        self._beside = OwnershipFile(CheckpointStore.open(f"{file}.eos/{name}"), f"shelf {file}")

    @property
    def members(self) -> tuple[Member, ...]:
        return (Member(self._name, KIND, {"file": self._file}),)

    def check(self, works: Sequence[PreparedWork]) -> None:
        assert {work.kind for work in works} <= {KIND}

    def commit(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        for work in works:
            with opened(self._file) as base:
                moved = base.execute(
                    "INSERT INTO rows SELECT * FROM staged WHERE work = ?", (work.key,)
                ).rowcount
                if moved:
                    assert moved == work.rows
                    base.execute("INSERT INTO ended VALUES (?)", (work.key,))
                    base.execute("DELETE FROM staged WHERE work = ?", (work.key,))
            failpoint("settled-some")
        return self.outcome(works)

    def abort(self, works: Collection[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        with opened(self._file) as base:
            return {
                work: base.execute("DELETE FROM staged WHERE work = ?", (work.key,)).rowcount > 0
                for work in works
            }

    abandon = abort  # rows are moved or they are removed

    def outcome(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        with opened(self._file) as base:
            open_ = {key for (key,) in base.execute("SELECT DISTINCT work FROM staged")}
            ended = {key for (key,) in base.execute("SELECT work FROM ended")}
        return {
            work.identity: Outcome.COMMITTED
            if work.key in ended
            else Outcome.OPEN
            if work.key in open_
            else Outcome.ABORTED
            for work in works
        }

    def open(self, *, except_known: Collection[WorkIdentity] = ()) -> tuple[OpenWork, ...]:
        known = {work.key for work in except_known}
        with opened(self._file) as base:
            found = [key for (key,) in base.execute("SELECT DISTINCT work FROM staged")]
        return tuple(
            OpenWork(KIND, self._name, key, int(key.partition("-")[0]), None, (self._file,))
            for key in sorted(found)
            if key not in known
        )

    def claim(self, owner: Owner) -> None:
        self._beside.claim(owner)

    def ownership(self, asking: Owner) -> tuple[Ownership, ...]:
        return self._beside.ownership(asking)

    def require_settled(self, promise: Promise, said: OperatorRuling) -> None:
        """Nothing is asked: a shelf does not forget."""

    def note(self, decision: Decision, owner: Owner) -> None:
        self._beside.note(decision, owner)

    def close(self) -> None:
        pass


def connect(member: Member, _how: object, **_: Any) -> ShelfParticipant:
    """The entry point."""
    return ShelfParticipant(member.name, member.address["file"])


@dataclass(frozen=True)
class ShelfSink:
    file: str
    name: str = "sink"

    def check(self, spark: SparkSession) -> None:
        pass

    def bound(self, store: CheckpointStore) -> ShelfSink:
        del store
        return self

    def connect(self, interval: timedelta) -> ShelfParticipant:
        del interval
        return ShelfParticipant(self.name, self.file)

    def columns(self, schema: StructType, row: str = "") -> list[str]:
        return [f"{row}`{name}` AS `{name}`" for name in schema.fieldNames()]

    def opened(self, task: int, task_attempt: int, *, transactional: bool = True) -> ShelfWriter:
        now_ms = time.time_ns() // 1_000_000
        return ShelfWriter(
            self, f"{now_ms}-{task}-{task_attempt}-{uuid.uuid4().hex}", transactional
        )

    def delivered(self, spark: SparkSession, works: Sequence[PreparedWork]) -> DataFrame:
        keys = [work.key for work in works]
        with opened(self.file) as base:
            found = base.execute(
                f"SELECT key, value FROM rows WHERE work IN ({','.join('?' * len(keys))})", keys
            ).fetchall()
        return spark.createDataFrame(found, "key binary, value binary")


class ShelfWriter:
    def __init__(self, sink: ShelfSink, key: str, transactional: bool) -> None:
        self._sink, self._key, self._transactional = sink, key, transactional
        self._rows: list[pa.RecordBatch] = []

    def write(self, rows: pa.RecordBatch) -> None:
        self._rows.append(rows)

    def prepare(self, fingerprint: str) -> PreparedWork | None:
        if not self._rows:
            return None
        table = pa.Table.from_batches(self._rows)
        columns = (table["key"].to_pylist(), table["value"].to_pylist())
        with opened(self._sink.file) as base:
            base.executemany(
                "INSERT INTO staged VALUES (?, ?, ?)",
                [(self._key, key, value) for key, value in zip(*columns, strict=True)],
            )
        name, rows, since_ms = self._sink.name, table.num_rows, int(self._key.partition("-")[0])
        work = PreparedWork(KIND, name, self._key, rows, fingerprint, since_ms, None, {})
        if self._transactional:
            return work
        self._sink.connect(timedelta()).commit([work])
        return None

    def abort(self) -> None:
        pass


def staged(file: str) -> int:
    """Pieces of work that wait."""
    if not Path(file).exists():
        return 0
    with opened(file) as base:
        return int(base.execute("SELECT count(DISTINCT work) FROM staged").fetchone()[0])
