"""Three streams upsert into one table, each settled by two at once who die, beside an optimizer.

The log says in which order they came; applied in that order, their batches are the table.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError
from pyiceberg.exceptions import CommitFailedException, ValidationException

from airflow_eos.core.protocol.decision import PreparedWork
from airflow_eos.errors import StoreError
from airflow_eos.kinds.delta import participant as of_delta
from airflow_eos.kinds.iceberg import participant as of_iceberg
from airflow_eos.kinds.iceberg.merge import Overwriting
from tests.integration.lake import test_delta_upserts as of_delta_tests
from tests.integration.lake import test_iceberg_upserts as of_iceberg_tests
from tests.integration.lake.kinds import ICEBERG
from tests.integration.lake.stage import Stage
from tests.integration.lake.test_delta_upserts import COMMITTED, SCHEMA, prepared

pytestmark = pytest.mark.proof
BATCHES = 12
KEYS = range(12)
DEATHS = 0.2
Row = tuple[int, str, bool]


class DeathError(Exception):
    """A process that settles is killed: its next one knows nothing of it."""


class Stream(Stage):
    def __init__(self, kind: Any, folder: Path, name: str) -> None:
        super().__init__(kind, folder / name)
        self._at = folder / "table"
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
    with ThreadPoolExecutor(len(acts)) as threads:
        for done in as_completed([threads.submit(act) for act in acts]):
            done.result()


def dying(act: Callable[..., Any], chance: random.Random) -> Callable[..., Any]:
    """The act, and often a death behind it."""

    def acted(*given: Any, **named: Any) -> Any:
        result = act(*given, **named)
        if chance.random() < DEATHS:
            raise DeathError
        return result

    return acted


class Delta:
    """Its log, compaction, and who dies where."""

    pause_s = 0.05

    def __init__(self, table: Path) -> None:
        self.table = table
        DeltaTable.create(str(table), schema=SCHEMA)

    def kind(self, name: str) -> Any:
        return of_delta_tests.UpsertingDelta(application=name)

    def die(self, monkeypatch: pytest.MonkeyPatch, chance: random.Random) -> None:
        monkeypatch.setattr(of_delta, "rewritten", dying(of_delta.__dict__["rewritten"], chance))
        view = of_delta.DeltaSnapshot
        monkeypatch.setattr(view, "_commit", dying(view._commit, chance))

    def optimize(self) -> None:
        with contextlib.suppress(DeltaError):  # overtaken
            DeltaTable(self.table).optimize.compact()
            DeltaTable(self.table).create_checkpoint()

    def slots(self) -> Iterator[tuple[str, int]]:
        """What each commit wrote into which slot, in the order of the log."""
        for commit in sorted((self.table / "_delta_log").glob("*[0-9].json")):
            for line in commit.read_text().splitlines():
                said = json.loads(line).get("txn")
                if said is not None:
                    yield said["appId"], said["version"]

    def rows(self) -> list[dict[str, Any]]:
        asked = QueryBuilder().register("t", DeltaTable(self.table)).execute("SELECT id, v FROM t")
        found: list[dict[str, Any]] = pa.table(asked).to_pylist()
        return found


class Iceberg:
    """As Delta; the optimizer is of another program, which reads and replaces all files."""

    pause_s = 2.0  # a commit takes longer here: one that is always overtaken would never end

    def __init__(self, table: Path) -> None:
        self.table = table
        ICEBERG.create(table, SCHEMA)
        self._change(self._often_merged)

    @staticmethod
    def _often_merged(table: Any) -> None:
        told = {"commit.manifest.min-count-to-merge": "3", "commit.retry.num-retries": "0"}
        table.transaction().set_properties(told).commit_transaction()

    def _change(self, change: Callable[[Any], object]) -> None:
        with contextlib.closing(ICEBERG.catalog(self.table)) as catalog:
            change(catalog.load_table("db.rows"))

    def kind(self, name: str) -> Any:
        return of_iceberg_tests.UpsertingIceberg(application=name)

    def die(self, monkeypatch: pytest.MonkeyPatch, chance: random.Random) -> None:
        monkeypatch.setattr(Overwriting, "rewritten", dying(Overwriting.rewritten, chance))
        view = of_iceberg.IcebergSnapshot
        monkeypatch.setattr(view, "_commit", dying(view._commit, chance))

    def optimize(self) -> None:
        def compact(table: Any) -> None:
            if table.current_snapshot() is not None:
                table.overwrite(table.scan().to_arrow())

        with contextlib.suppress(CommitFailedException, ValidationException):  # overtaken
            self._change(compact)

    def slots(self) -> Iterator[tuple[str, int]]:
        with contextlib.closing(ICEBERG.catalog(self.table)) as catalog:
            snapshots = catalog.load_table("db.rows").metadata.snapshots
        for snapshot in sorted(snapshots, key=lambda each: each.sequence_number):
            for key, value in snapshot.summary.additional_properties.items():
                if key.startswith("eos."):
                    yield key.removeprefix("eos."), int(value)

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = ICEBERG.rows(self.table).to_pylist()
        return found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("of", [Delta, Iceberg])
def test_each_batch_is_there_once_and_the_newest_row_of_each_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, of: Callable[[Path], Any]
):
    chance, over = random.Random(seed), threading.Event()
    table = of(tmp_path / "table")
    streams = [Stream(table.kind(name), tmp_path, name) for name in ("a", "b", "c")]
    table.die(monkeypatch, chance)

    def optimize() -> None:
        while not over.wait(table.pause_s):
            table.optimize()

    def deliver() -> None:
        together([lambda s=s: s.run(random.Random(f"{seed}{s.name}")) for s in streams])  # type: ignore[misc]
        over.set()

    together([deliver, optimize])
    order = []
    for slot, number in table.slots():
        assert number % 2, "no batch was lost"
        order.append((slot.partition("/")[0], number // 2))
    assert sorted(order) == [(s.name, batch) for s in streams for batch in range(BATCHES)]
    expected: dict[int, str] = {}
    for name, batch in order:
        for key, value, gone in next(s.given for s in streams if s.name == name)[name, batch]:
            expected.pop(key, None)
            expected |= {} if gone else {key: value}
    assert sorted((row["id"], row["v"]) for row in table.rows()) == sorted(expected.items())
    assert [*tmp_path.rglob("_eos/*/rows/*.parquet")] == []
