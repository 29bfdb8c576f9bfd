"""A files sink on a stage: prepared, decided, committed, and what readers see of it; no Spark."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from airflow_eos.core.checkpoint import CheckpointStore, DecisionLog, PipelineIdentity, claim
from airflow_eos.core.participants import connect
from airflow_eos.core.protocol.decision import Outcome, PreparedWork
from airflow_eos.kinds.files.manifest import LOG
from airflow_eos.kinds.files.sink import LINE_COLUMN
from airflow_eos.sinks import FileSink
from tests.support.pipelines import commit_of


@dataclass
class Stage:
    """A sink, its checkpoint, and what readers see."""

    sink: FileSink
    checkpoint: Path

    def __post_init__(self) -> None:
        claimed(self.store)

    @property
    def participant(self) -> Any:
        """Of the driver that starts."""
        return self.sink.connect(timedelta())

    @property
    def recovery(self) -> Any:
        """From what the checkpoint says, in another process."""
        reach = {"files": {"storage_options": self.sink.storage_options}}
        return connect(self.participant.members, reach, store=self.store)

    @property
    def store(self) -> CheckpointStore:
        return CheckpointStore.open(self.checkpoint)

    @property
    def by_batches(self) -> bool:
        return self.sink.publish == "manifest"

    def prepare(self, *rows: str, task: int = 0) -> PreparedWork:
        writer = self.sink.opened(task, 0)
        days = [row[0] for row in rows]
        texts = [msgspec.json.encode(row).decode() for row in rows]
        writer.write(pa.RecordBatch.from_pydict({LINE_COLUMN: texts, "day": days}))
        work = writer.prepare("0" * 32)
        assert work is not None
        return work

    def decide(self, *works: PreparedWork, batch: int = 0, attempt: int = 1) -> None:
        decision = commit_of(batch, *works, attempt=attempt)
        assert DecisionLog(self.store).record(decision)

    def promised(self, *rows: Sequence[str], batch: int = 0, attempt: int = 1) -> Any:
        works = [self.prepare(*each, task=task) for task, each in enumerate(rows)]
        self.decide(*works, batch=batch, attempt=attempt)
        return works

    def seen(self) -> Counter[str]:
        """The rows that a reader of this form finds."""
        storage = self.sink.storage()
        data = [storage.read(path) for path in self.paths()]
        return Counter(msgspec.json.decode(line) for each in data for line in each.splitlines())

    def paths(self) -> list[str]:
        storage = self.sink.storage()
        if self.by_batches:
            lines = [line for name in entries(storage) for line in entry(storage, name)]
            paths = [msgspec.json.decode(line)["path"] for line in lines if b'isDir":false' in line]
            return [unquote(path).removeprefix(f"{unquote(storage.url)}/") for path in paths]
        days = [name for name in storage.names() if name.startswith("day=")]
        return [entry.path for day in days for entry in storage.below(day)]


def claimed(store: CheckpointStore) -> PipelineIdentity:
    """The pipeline of the checkpoint, as its first driver has made it."""
    made = PipelineIdentity(
        id=uuid.uuid4().hex, participants=(), created_at_ms=0, created_by="test"
    )
    return claim(store, made)


def entries(storage: Any) -> list[str]:
    """As Spark reads its log: the newest entry that holds all of those before, and those after."""
    names = sorted((each.name for each in storage.store.list(LOG)), key=number)
    whole = [at for at, name in enumerate(names) if name.endswith(".compact")]
    return names[max(whole, default=0) :]


def number(name: str) -> int:
    return int(name.removesuffix(".compact"))


def entry(storage: Any, name: str) -> list[bytes]:
    return storage.store.get(f"{LOG}/{name}").splitlines()[1:]  # type: ignore[no-any-return]


def outcomes(told: Any) -> set[Outcome]:
    return set(told.values())
