"""What rows by their key owe in either kind of table: its own module imports these.

A module that does has a fixture ``stage``, whose kind is an :class:`Upserting`, and ``one_key``, a
table in which each batch replaces the one row.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import BooleanType, DoubleType, LongType, StringType, StructField, StructType

from airflow_eos.core.checkpoint import Decision
from airflow_eos.core.protocol.decision import Outcome, PreparedWork
from airflow_eos.errors import ConfigurationError, DeliveryError, StoreError
from airflow_eos.kinds.lake.upsert import LakeUpsert
from tests.integration.lake.stage import Stage, stopped

COMMITTED, ABORTED = Outcome.COMMITTED, Outcome.ABORTED
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
ROWS = pa.schema([*SCHEMA, ("gone", pa.bool_())])
DAYS = pa.schema([("id", pa.int64()), ("day", pa.string()), ("v", pa.string())])
UPSERT = LakeUpsert(key=["id"], deleted="gone")


class Upserting:
    """Beside a kind of table: what is asked of its sink, and what other programs do to the table.

    A kind adds ``paths`` (of the files of its newest version), ``append``, ``compact``, ``delete``,
    ``parted`` (which makes a table in partitions of the values of a column), and ``between``, which
    lets something happen after each rewriting, before its commit, and tells what was rewritten.
    """

    def __init__(self, upsert: LakeUpsert = UPSERT, application: str = "etl", **more: Any) -> None:
        self.upsert = upsert
        self.more = {"application_id": application, **more}

    def sink(self, folder: Path) -> Any:
        return replace(super().sink(folder), upsert=self.upsert, **self.more)  # type: ignore[misc]


def prepared(
    stage: Stage, *rows: tuple[Any, ...], task: int = 0, schema: pa.Schema = ROWS
) -> PreparedWork:
    writer = stage.sink.opened(task, 0)
    named = [dict(zip(schema.names, row, strict=False)) for row in rows]
    writer.write(pa.RecordBatch.from_pylist(named, schema=schema))
    work: PreparedWork | None = writer.prepare("0" * 32)
    assert work is not None
    return work


def decided(
    stage: Stage, *rows: tuple[Any, ...], batch: int, attempt: int = 1, schema: pa.Schema = ROWS
) -> Decision:
    return stage.decide(prepared(stage, *rows, schema=schema), batch=batch, attempt=attempt)


def settled(stage: Stage, decision: Decision) -> Outcome:
    (outcome,) = set(stage.participant().commit(decision.works).values())
    return outcome


def delivered(stage: Stage, *rows: tuple[Any, ...], batch: int, schema: pa.Schema = ROWS) -> None:
    assert settled(stage, decided(stage, *rows, batch=batch, schema=schema)) is COMMITTED


def found(stage: Stage) -> dict[int, str]:
    rows = stage.kind.rows(stage.table)
    ids = rows["id"].to_pylist()
    assert len(set(ids)) == len(ids), "a row for each key"
    return dict(zip(ids, rows["v"].to_pylist(), strict=True))


def waiting(stage: Stage) -> list[Path]:
    return [each for each in stage.table.rglob("*.parquet") if "_eos" in each.parts]


def theirs(stage: Any, number: int) -> Any:
    """Another program's row."""
    return stage.kind.append(stage.table, pa.table({"id": [number], "v": ["theirs"]}, SCHEMA))


def replacing(stage: Stage, value: int, *, batch: int) -> Decision:
    writer = stage.sink.opened(0, 0)
    writer.write(pa.RecordBatch.from_pydict({"key": ["k"], "value": [value]}))
    return stage.decide(writer.prepare("0" * 32), batch=batch)


def spark_schema(**columns: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def test_a_row_replaces_that_of_its_key_and_deletes_take_it_away(stage: Any):
    delivered(stage, (1, "a"), (2, "b"), (3, "c"), batch=0)
    delivered(stage, (2, "B"), (3, None, True), (4, "d"), (9, None, True), batch=1)
    assert found(stage) == {1: "a", 2: "B", 4: "d"}
    assert sorted(stage.kind.by_hand(stage.table)["id"].to_pylist()) == [1, 2, 4]
    assert waiting(stage) == []
    assert stage.noted() == set()
    delivered(stage, (1, None, True), (2, None, True), (4, None, True), batch=2)
    assert found(stage) == {}


def wide(stage: Stage, ids: range, *, batch: int) -> None:
    """Deliver rows of 200 bytes that neither repeat nor shrink."""
    writer = stage.sink.opened(0, 0)
    for first in range(ids.start, ids.stop, 10_000):
        text = random.Random(first).randbytes(1_000_000).hex()
        values = [text[at : at + 200] for at in range(0, len(text), 200)]
        of = range(first, first + len(values))
        writer.write(pa.RecordBatch.from_arrays([of, values, [False] * len(of)], schema=ROWS))
    assert settled(stage, stage.decide(writer.prepare("0" * 32), batch=batch)) is COMMITTED


@contextmanager
def measured() -> Iterator[list[int]]:
    """What Arrow has held at most, in bytes."""
    before, found = pa.default_memory_pool(), [0]
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    try:
        yield found
    finally:
        pa.set_memory_pool(before)
        found[0] = pool.max_memory()


def test_a_file_that_is_written_anew_is_not_held_as_a_whole(stage: Any):
    """Of Iceberg three times the file was held; of Delta all of the keys."""
    peaks = []
    for batch, ids in enumerate((range(200_000), range(200_000, 1_000_000))):
        wide(stage, ids, batch=2 * batch)
        one = decided(stage, (ids.start, "new"), batch=2 * batch + 1)
        with measured() as found:
            assert settled(stage, one) is COMMITTED
        peaks += found
    assert peaks[1] < 1.3 * peaks[0], "four times the rows"
    rows = stage.kind.rows(stage.table)
    assert sorted(rows["id"].to_pylist()) == [*range(1_000_000)]
    assert rows["v"].to_pylist().count("new") == 2
    groups = [pq.read_metadata(file) for file in stage.table.rglob("*.parquet")]
    assert max(each.num_row_groups for each in groups) > 5, "and readers skip some"


def test_within_a_batch_the_last_row_of_a_key_stays(stage: Stage):
    first = prepared(stage, (1, "first"), (1, "later"), (2, "x", True), (2, "back"), task=2)
    second = prepared(stage, (1, "of a higher task"), (3, "y"), (3, None, True), task=10)
    stage.decide(second, first)
    assert set(stage.participant().commit([first, second]).values()) == {COMMITTED}
    assert found(stage) == {1: "of a higher task", 2: "back"}


def test_nothing_is_seen_before_the_decision_and_what_is_aborted_leaves_nothing(stage: Stage):
    delivered(stage, (1, "a"), batch=0)
    work = prepared(stage, (1, "b"))
    assert len(waiting(stage)) == 1
    assert found(stage) == {1: "a"}
    assert stage.participant().abort([work.identity]) == {work.identity: True}
    assert waiting(stage) == []
    stage.decide(work, batch=1)
    assert stage.participant().commit([work]) == {work.identity: ABORTED}
    assert found(stage) == {1: "a"}


def test_a_commit_again_changes_nothing_twice(stage: Any):
    first = decided(stage, (1, "a"), batch=0)
    assert settled(stage, first) is COMMITTED
    delivered(stage, (1, "b"), (2, "c"), batch=1)
    commits = stage.kind.commits(stage.table)
    assert settled(stage, first) is Outcome.UNKNOWN, "a later batch stands"
    assert stage.kind.commits(stage.table) == commits
    assert found(stage) == {1: "b", 2: "c"}


def test_waiting_rows_that_are_gone_are_a_replay_and_no_silence(stage: Stage):
    delivered(stage, (1, "a"), batch=0)
    lost = decided(stage, (1, "b"), batch=1)
    waiting(stage)[0].unlink()
    assert settled(stage, lost) is ABORTED
    again = decided(stage, (1, "b"), batch=1, attempt=2)
    assert settled(stage, again) is COMMITTED
    assert found(stage) == {1: "b"}


@pytest.mark.parametrize(
    ("act", "seen_of_others"),
    [
        (lambda stage: theirs(stage, 7), {1: "a", 7: "theirs"}),
        (lambda stage: theirs(stage, 2), {1: "a"}),
        (lambda stage: stage.kind.compact(stage.table), {1: "a"}),
        (lambda stage: stage.kind.delete(stage.table, "id = 1"), {}),
    ],
    ids=["an append", "an append of the same key", "a compaction", "a delete"],
)
def test_what_another_engine_commits_in_between_is_seen(stage: Any, act, seen_of_others):
    """On the version that was read the commit would bring rows back, or leave a key twice."""
    for batch in range(3):
        delivered(stage, (1 + batch, "a"), batch=batch)
    work = decided(stage, (2, "b"), (4, "d"), batch=3)
    racing, seen = stage.kind.between(lambda tries: tries == 1 and act(stage))
    with racing:
        assert settled(stage, work) is COMMITTED
    assert len(seen) == 2
    assert found(stage) == {2: "b", 3: "a", 4: "d"} | seen_of_others


def test_a_lost_race_writes_nothing_again(stage: Any):
    delivered(stage, (1, "a"), (2, "b"), batch=0)
    work = decided(stage, (1, "c"), batch=1)
    racing, seen = stage.kind.between(lambda tries: tries < 3 and theirs(stage, 100 + tries))
    with racing:
        assert settled(stage, work) is COMMITTED
    assert len(seen) == 3
    assert [added for added, *_ in seen] == [seen[0][0]] * 3, "the same files, written once"
    assert found(stage) == {1: "c", 2: "b", 101: "theirs", 102: "theirs"}


def test_what_a_cleaner_took_between_two_tries_is_written_again(stage: Any):
    delivered(stage, (1, "a"), (2, "b"), batch=0)
    work, before = decided(stage, (1, "c"), batch=1), {*stage.table.rglob("*.parquet")}

    def cleaned(tries: int) -> None:
        if tries == 1:
            for file in {*stage.table.rglob("*.parquet")} - before:
                file.unlink()
            theirs(stage, 7)

    racing, seen = stage.kind.between(cleaned)
    with racing:
        assert settled(stage, work) is COMMITTED
    assert len(seen) == 2
    assert found(stage) == {1: "c", 2: "b", 7: "theirs"}


def once(act: Callable[[], object]) -> Callable[[int], object]:
    left = [act]
    return lambda _tries: left and left.pop()()


def test_two_processes_at_once_commit_a_decision_once(stage: Any):
    delivered(stage, (1, "a"), batch=0)
    work, other = decided(stage, (1, "b"), (2, "c"), batch=1), stage.participant()
    told: list[set[Outcome]] = []
    rival = once(lambda: told.append({*other.commit(work.works).values()}))
    racing, _ = stage.kind.between(rival)
    with racing:
        assert settled(stage, work) is COMMITTED
    assert told == [{COMMITTED}]
    assert stage.kind.commits(stage.table) == 2
    assert found(stage) == {1: "b", 2: "c"}


class _Second(Stage):
    """Another pipeline into the table of ``stage``."""

    def __init__(self, stage: Any) -> None:
        super().__init__(type(stage.kind)(application="second"), stage.folder / "second")
        self._at: Path = stage.table
        self.claimed()

    @property
    def table(self) -> Path:
        return self._at


def test_two_streams_that_insert_one_key_leave_one_row(stage: Any):
    """delta-rs' own check of conflicts takes such a commit for a blind append."""
    other = _Second(stage)
    ours = decided(stage, (1, "ours"), batch=0)
    others = decided(other, (1, "theirs"), batch=0)
    told: list[Outcome] = []
    racing, _ = stage.kind.between(once(lambda: told.append(settled(other, others))))
    with racing:
        assert settled(stage, ours) is COMMITTED
    assert told == [COMMITTED]
    assert found(stage) == {1: "ours"}, "the later commit stays"


@pytest.mark.parametrize("place", ["looked", "rewritten", "settled-some"])
def test_who_is_killed_within_a_commit_leaves_each_key_once(one_key: Stage, place: str):
    for batch in range(2):
        assert settled(one_key, replacing(one_key, batch, batch=batch)) is COMMITTED
    work = replacing(one_key, 7, batch=2)
    one_key.killed("commit", f"{place}=kill", batch=2)
    assert one_key.values() == ({7: 1} if place == "settled-some" else {1: 1})
    assert settled(one_key, work) is COMMITTED
    assert one_key.values() == {7: 1}
    assert waiting(one_key) == []
    assert one_key.noted() == set()


def test_a_driver_that_slept_over_two_batches_changes_nothing_when_it_wakes(one_key: Stage):
    assert settled(one_key, replacing(one_key, 0, batch=0)) is COMMITTED
    work = replacing(one_key, 1, batch=1)
    child = one_key.start("commit", failpoints="rewritten=stop", batch=1)
    stopped(child)
    assert settled(one_key, work) is COMMITTED
    assert settled(one_key, replacing(one_key, 2, batch=2)) is COMMITTED
    commits = one_key.kind.commits(one_key.table)
    child.send_signal(signal.SIGCONT)
    told, error = child.communicate(timeout=300)
    assert told.split() == ["unknown"], error
    assert one_key.kind.commits(one_key.table) == commits
    assert one_key.values() == {2: 1}


def test_rows_move_between_partitions_and_only_files_with_a_key_are_written(
    stage: Any, tmp_path: Path
):
    (folder := tmp_path / "parted").mkdir()
    parted: Any = Stage(type(stage.kind)(LakeUpsert(["id"])), folder)
    parted.kind.parted(parted.table, DAYS, "day")
    parted.claimed()
    rows = [(1, "a/é", "x"), (2, "a/é", "x"), (3, None, "x"), (100, "c", "x")]
    delivered(parted, *rows, batch=0, schema=DAYS)
    before = parted.kind.paths(parted.table)
    delivered(parted, (1, "b", "y"), (3, "b", "y"), batch=1, schema=DAYS)
    left = before & parted.kind.paths(parted.table)
    assert [Path(each).parent.name for each in left] == ["day=c"]
    rows = parted.kind.rows(parted.table).sort_by("id").to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (1, "b", "y"), (2, "a/é", "x"), (3, "b", "y"), (100, "c", "x"),
    ]  # fmt: skip


def test_a_row_without_a_key_is_refused_by_its_task(stage: Stage):
    with pytest.raises(DeliveryError, match="A row has no id"):
        prepared(stage, (1, "a"), (None, "b"))


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"v": StringType(), "gone": BooleanType()}, "no column id"),
        ({"id": DoubleType(), "v": StringType(), "gone": BooleanType()}, "floating point"),
        ({"id": LongType(), "gone": StringType()}, "expected boolean"),
        ({"id": LongType(), "w": StringType(), "gone": BooleanType()}, "no column w"),
    ],
)
def test_rows_that_cannot_replace_others_are_refused_before_the_first(stage: Stage, columns, why):
    with pytest.raises(ConfigurationError, match=why):
        stage.sink.columns(spark_schema(**columns))
    assert stage.sink.columns(spark_schema(id=LongType(), v=StringType(), gone=BooleanType()))


def test_a_file_that_goes_while_it_is_read_is_looked_for_again_and_then_named(
    stage: Any, monkeypatch
):
    delivered(stage, (1, "a"), batch=0)
    work = decided(stage, (1, "b"), batch=1)
    (path,) = stage.kind.paths(stage.table)
    Path(path.removeprefix("file://")).unlink()
    monkeypatch.setattr("airflow_eos.kinds.lake.participant._PAUSES_S", (0.0, 0.0))
    with pytest.raises(StoreError, match=r"in 2 tries: a file that was to be read is gone"):
        settled(stage, work)
    assert waiting(stage), "what was promised stays"
