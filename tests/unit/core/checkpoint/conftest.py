"""Real stores for the checkpoint's tests, and one that loses replies on purpose."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any, Literal

import pytest
from obstore.store import MemoryStore

from airflow_eos.core.checkpoint import CheckpointStore, Decision, Verdict
from airflow_eos.core.protocol.decision import PreparedWork


class TroubledBackend:
    """A real MemoryStore behind a network that misbehaves as told, once for each entry.

    ``before`` and ``after`` hold errors raised before or after a put has taken effect, ``instead``
    holds bytes that somebody else writes just before ours arrive. ``calls`` counts requests.
    """

    def __init__(self) -> None:
        self.real = MemoryStore()
        self.before: list[Exception] = []
        self.after: list[Exception] = []
        self.instead: list[bytes] = []
        self.reading: list[Exception] = []
        self.overwrites = False
        self.calls: Counter[str] = Counter()

    def put(self, path: str, file: bytes, *, mode: Literal["create", "overwrite"]) -> object:
        self.calls["put"] += 1
        if self.before:
            raise self.before.pop(0)
        if self.instead:
            self.real.put(path, self.instead.pop(0), mode="create")
        result = self.real.put(path, file, mode="overwrite" if self.overwrites else mode)
        if self.after:
            raise self.after.pop(0)
        return result

    def get(self, path: str) -> Any:
        self.calls["get"] += 1
        if self.reading:
            raise self.reading.pop(0)
        return self.real.get(path)

    def head(self, path: str) -> Any:
        self.calls["head"] += 1
        return self.real.head(path)

    def list_with_delimiter(self, prefix: str) -> Any:
        self.calls["list"] += 1
        return self.real.list_with_delimiter(prefix)

    def delete(self, paths: str) -> None:
        self.calls["delete"] += 1
        self.real.delete(paths)


@pytest.fixture
def backend() -> TroubledBackend:
    return TroubledBackend()


@pytest.fixture
def troubled(backend, monkeypatch) -> CheckpointStore:
    monkeypatch.setattr("airflow_eos.core.checkpoint.store._PAUSES_S", (0.0, 0.0, 0.0, 0.0))
    return CheckpointStore(backend, "memory://test")


@pytest.fixture(params=["local", "memory"])
def store(request, tmp_path) -> CheckpointStore:
    """Every test of meaning runs on a real disk and on an object store without folders."""
    if request.param == "local":
        return CheckpointStore.open(tmp_path / "query")
    return CheckpointStore(MemoryStore(), "memory://test")


@pytest.fixture
def local(tmp_path) -> CheckpointStore:
    return CheckpointStore.open(tmp_path / "query")


def decision(batch_id: int, attempt: int = 1, **changed: Any) -> Decision:
    """A COMMIT of one transaction, with a nonce of its own."""
    written = {"topic": "orders.clean", "partition": 0, "first": 100, "last": 101}
    detail = {"written": [written]}
    work = PreparedWork("kafka", "sink", "etl-0-0-7-3", 2, "0" * 32, 1_000, 60_000, detail)
    values: dict[str, Any] = {
        "batch_id": batch_id,
        "attempt": attempt,
        "verdict": Verdict.COMMIT,
        "works": (work,),
        "offsets": 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":7}\n{}',
        "decided_by": "driver-1",
        "decided_at_ms": 1_700_000_000_000,
        "nonce": uuid.uuid4().hex,
    }
    return Decision(**(values | changed))


@pytest.fixture
def make_decision():
    return decision
