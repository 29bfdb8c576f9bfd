"""A table, a checkpoint and a pipeline of it: what the tests of both kinds of tables act on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from airflow_eos.core.checkpoint import (
    CheckpointStore,
    Decision,
    DecisionLog,
    PipelineIdentity,
    Verdict,
    claim,
)
from airflow_eos.core.protocol.decision import Outcome, PreparedWork
from airflow_eos.kinds.lake.participant import LakeParticipant, files_of

ROOT = Path(__file__).parents[3]
SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64())])


class Kind(Protocol):
    """What differs between the kinds."""

    name: str

    def create(self, folder: Path, schema: pa.Schema = SCHEMA) -> None: ...
    def table(self, folder: Path) -> Path: ...
    def sink(self, folder: Path) -> Any: ...
    def reach(self, folder: Path) -> dict[str, Any]: ...
    def rows(self, folder: Path) -> pa.Table: ...
    def by_hand(self, folder: Path) -> pa.Table: ...
    def commits(self, folder: Path) -> int: ...
    def clear(self, folder: Path) -> None: ...
    def files(self, folder: Path) -> Path: ...
    def add_columns(self, folder: Path) -> None: ...


class Asked(msgspec.Struct):
    """What a child process does."""

    kind: str
    folder: str
    verb: str
    key: str = ""
    batch: int = 0
    attempt: int = 1


@dataclass
class Stage:
    kind: Kind
    folder: Path

    def made(self, schema: pa.Schema = SCHEMA) -> Stage:
        self.kind.create(self.table, schema)
        return self.claimed()

    def claimed(self) -> Stage:
        """The table is there already."""
        pipeline = PipelineIdentity(
            id=uuid.uuid4().hex,
            participants=self.participant().members,
            created_at_ms=0,
            created_by="test",
        )
        claim(self.store, pipeline)
        return self

    @property
    def table(self) -> Path:
        return self.kind.table(self.folder)

    @property
    def store(self) -> CheckpointStore:
        return CheckpointStore.open(self.folder / "checkpoint")

    @property
    def sink(self) -> Any:
        return self.kind.sink(self.table).bound(self.store)

    def participant(self) -> LakeParticipant:
        participant: LakeParticipant = self.sink.connect(timedelta(seconds=1))
        return participant

    def prepare(self, *values: int, task: int = 0) -> PreparedWork:
        writer = self.sink.opened(task, 0)
        writer.write(batch(*values))
        work: PreparedWork | None = writer.prepare("0" * 32)
        assert work is not None
        return work

    def decide(self, *works: PreparedWork, batch: int = 0, attempt: int = 1) -> Decision:
        decision = Decision(
            batch_id=batch,
            attempt=attempt,
            verdict=Verdict.COMMIT if works else Verdict.ABORT,
            works=works,
            offsets="v1\n{}\n{}" if works else None,
            reason="" if works else "sealed",
            decided_by="test",
            decided_at_ms=0,
            nonce=uuid.uuid4().hex,
        )
        assert DecisionLog(self.store).record(decision)
        return decision

    def promised(self, *values: int) -> PreparedWork:
        """What a batch has prepared and decided."""
        work = self.prepare(*values)
        self.decide(work)
        return work

    def delivered(self, *values: int, batch: int = 0) -> PreparedWork:
        work = self.prepare(*values)
        self.decide(work, batch=batch)
        self.participant().commit([work])
        return work

    def values(self) -> Counter[int]:
        return Counter(self.kind.rows(self.table)["value"].to_pylist())

    def noted(self) -> set[str]:
        return {each.key for each in self.participant().open()}

    def file(self, work: PreparedWork) -> Path:
        """The first file of the work, whatever its partition."""
        (path, *_) = files_of(work, "")
        return self.kind.files(self.table) / path.path.removeprefix("_eos/etl/rows/")

    def data_files(self) -> set[str]:
        """The keys of the work that has files."""
        found = self.kind.files(self.table).rglob("*.parquet")
        return {"-".join(file.stem.split("-")[:3]) for file in found}

    def start(self, verb: str, *, failpoints: str = "", **asked: Any) -> subprocess.Popen[str]:
        """The verb in a process of its own."""
        given = Asked(self.kind.name, str(self.folder), verb, **asked)
        once = self.folder / uuid.uuid4().hex
        once.mkdir()
        environment = {
            **os.environ,
            "EOS_FAILPOINTS": failpoints,
            "EOS_FAILPOINTS_DIR": str(once),
            "PYTHONPATH": str(ROOT),
        }
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.integration.lake.child",
                msgspec.json.encode(given).decode(),
            ],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def killed(self, verb: str, failpoints: str, **asked: Any) -> None:
        child = self.start(verb, failpoints=failpoints, **asked)
        _, told = child.communicate(timeout=300)
        assert child.returncode == -signal.SIGKILL, told


def batch(*values: int) -> pa.RecordBatch:
    rows = {"key": [f"k{value}" for value in values], "value": list(values)}
    return pa.RecordBatch.from_pydict(rows, schema=SCHEMA)


def stopped(child: subprocess.Popen[str]) -> None:
    """Wait until the child has stopped itself."""

    def is_stopped() -> bool:
        assert child.poll() is None, child.communicate()
        state = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "T"

    deadline = time.monotonic() + 300
    while not is_stopped():
        assert time.monotonic() < deadline, "the child did not stop"
        time.sleep(0.02)


def answer(child: subprocess.Popen[str]) -> set[Outcome]:
    """What a commit in the child said, after it was stopped or not."""
    child.send_signal(signal.SIGCONT)
    out, told = child.communicate(timeout=300)
    assert child.returncode == 0, told
    return {Outcome(line) for line in out.split()}
