"""Three streams upsert into one table, each settled by two at once who die, beside an optimizer.

The log says in which order they came; applied in that order, their batches are the table.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from airflow_eos.core.protocol.decision import PreparedWork
from airflow_eos.errors import StoreError
from airflow_eos.kinds.delta import participant as of_delta
from tests.integration.lake.stage import Stage
from tests.integration.lake.test_delta_upserts import COMMITTED, SCHEMA, Upserting, prepared

pytestmark = pytest.mark.proof
BATCHES = 12
KEYS = range(12)
DEATHS = 0.2
Row = tuple[int, str, bool]


class DeathError(Exception):
    """A process that settles is killed: its next one knows nothing of it."""


class Stream(Stage):
    def __init__(self, folder: Path, table: Path, name: str) -> None:
        super().__init__(Upserting(application=name), folder / name)
        self._at = table
        self.name = name
        self.given: dict[tuple[str, int], list[Row]] = {}
        self.claimed()

    @property
    def table(self) -> Path:
        return self._at

    def run(self, chance: random.Random) -> None:
        for batch in range(BATCHES):
            keys = chance.sample(KEYS, 4)
            rows = [(key, f"{self.name}-{batch}", chance.random() < 0.2) for key in keys]
            self.given[self.name, batch] = rows
            work = prepared(self, *rows)
            self.decide(work, batch=batch)
            while not self._settled(work):
                pass

    def _settled(self, work: PreparedWork) -> bool:
        told: list[Any] = []

        def settle() -> None:
            try:
                told.extend(self.participant().commit([work]).values())
            except (DeathError, StoreError):
                return

        together([settle, settle])
        assert set(told) <= {COMMITTED}
        return bool(told)


def together(acts: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=act) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def dying(act: Callable[..., Any], chance: random.Random) -> Callable[..., Any]:
    """The act, and often a death behind it."""

    def acted(*given: Any) -> Any:
        result = act(*given)
        if chance.random() < DEATHS:
            raise DeathError
        return result

    return acted


def committed(table: Path) -> list[tuple[str, int]]:
    """Stream and batch of each commit, in the order of the log."""
    found = []
    for commit in sorted((table / "_delta_log").glob("*[0-9].json")):
        for line in commit.read_text().splitlines():
            said = json.loads(line).get("txn")
            if said is not None:
                assert said["version"] % 2, "no batch was lost"
                found.append((said["appId"].partition("/")[0], said["version"] // 2))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_each_batch_is_there_once_and_the_newest_row_of_each_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
):
    chance, table, over = random.Random(seed), tmp_path / "table", threading.Event()
    DeltaTable.create(str(table), schema=SCHEMA)
    streams = [Stream(tmp_path, table, name) for name in ("a", "b", "c")]
    monkeypatch.setattr(of_delta, "rewritten", dying(of_delta.__dict__["rewritten"], chance))
    view = of_delta.DeltaSnapshot
    monkeypatch.setattr(view, "_commit", dying(view._commit, chance))

    def optimize() -> None:
        while not over.wait(0.05):
            try:
                DeltaTable(table).optimize.compact()
                DeltaTable(table).create_checkpoint()
            except DeltaError:
                continue  # overtaken

    def deliver() -> None:
        together([lambda s=s: s.run(random.Random(f"{seed}{s.name}")) for s in streams])  # type: ignore[misc]
        over.set()

    together([deliver, optimize])
    order = committed(table)
    assert sorted(order) == [(s.name, batch) for s in streams for batch in range(BATCHES)]
    expected: dict[int, str] = {}
    for name, batch in order:
        for key, value, gone in next(s.given for s in streams if s.name == name)[name, batch]:
            expected.pop(key, None)
            expected |= {} if gone else {key: value}
    asked = QueryBuilder().register("t", DeltaTable(table)).execute("SELECT id, v FROM t")
    rows = pa.table(asked).to_pylist()
    assert sorted((row["id"], row["v"]) for row in rows) == sorted(expected.items())
    assert list((table / "_eos").rglob("*.parquet")) == []
