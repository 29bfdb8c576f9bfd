"""What an upsert into a table owes, whatever database it is: its own module imports these.

A module that does has the fixtures ``base`` (executes SQL), ``upsert`` (a participant that owns the
table ``totals``), ``again`` (another one of a checkpoint), ``spec`` (the target as a user gives
it), ``target`` (a task's connection to it) and ``how`` (to reach the database).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.protocol.decision import Outcome, PreparedWork
from airflow_eos.errors import OwnershipError, StoreError
from airflow_eos.kinds.upsert.participant import UpsertParticipant, connect
from airflow_eos.kinds.upsert.target import RowSchema
from tests.integration.kept.keeping import decided, keep
from tests.support.pipelines import owner_at, require_at

Again = Callable[[CheckpointStore], UpsertParticipant]


def prepare(store: CheckpointStore, batch: int, task: int = 0, **rows: Any) -> PreparedWork:
    """``rows``: the value of each key, in their order; None deletes it."""
    return prepared(store, batch, task, list(rows.items()))


def prepared(
    store: CheckpointStore, batch: int, task: int, rows: list[tuple[str, int | None]]
) -> PreparedWork:
    """The same, where a key may come twice."""
    values = [value for _, value in rows]
    table = pa.table(
        {
            "id": [key for key, _ in rows],
            "value": pa.array(values, pa.int64()),
            "gone": [value is None for value in values],
        }
    ).replace_schema_metadata(RowSchema(("id",), "gone").metadata())
    return keep(store, table, kind="upsert", name="totals", batch=batch, task=task)


def seen(base: Any) -> dict[str, int | None]:
    return dict(list(base.execute("SELECT id, value FROM totals WHERE NOT gone ORDER BY id")))


def claimed(spec: Any) -> Any:
    """A connection of a checkpoint ``/c``, which owns the target."""
    target = spec.open(timeout_s=30)
    target.check()
    target.ensure_instance_id()
    target.claim("/c", "c")
    return target


def test_nothing_is_written_before_the_commit_and_all_of_it_after(upsert, store, base):
    work = prepare(store, 0, a=1, b=2)
    assert seen(base) == {}
    assert upsert.commit([work]) == {work.identity: Outcome.COMMITTED}
    assert seen(base) == {"a": 1, "b": 2}


def test_a_late_driver_never_puts_an_older_value_over_a_newer_one(
    upsert, again: Again, store, base
):
    """Where a version is assigned column by column, it is assigned last: each looks at it."""
    older, newer = prepare(store, 9, a=1, b=1), prepare(store, 10, a=2)
    upsert.commit([newer])
    assert again(store).commit([older]) == {older.identity: Outcome.COMMITTED}
    assert seen(base) == {"a": 2, "b": 1}
    upsert.commit([prepare(store, 11, a=3)])
    assert seen(base) == {"a": 3, "b": 1}


def test_repeating_a_commit_that_was_cut_short_is_harmless(upsert, again: Again, store, base):
    """Killed after it was applied and before its mark."""
    work = prepare(store, 0, a=1, b=2)
    stream = upsert._kept.read(work.key)
    upsert.commit([work])
    (Path(store.location) / upsert._kept._marker_path("done", work.key)).unlink()
    upsert._kept.store.create(upsert._kept._rows(work.key), stream)
    assert upsert.outcome([work]) == {work.identity: Outcome.OPEN}
    assert again(store).commit([work]) == {work.identity: Outcome.COMMITTED}
    assert seen(base) == {"a": 1, "b": 2}


def test_a_key_twice_in_a_batch_has_the_last_row_of_the_highest_task(upsert, store, base):
    first, second = prepare(store, 0, 9, a=1), prepare(store, 0, 10, a=2)
    upsert.commit([second, first])
    assert seen(base) == {"a": 2}
    upsert.commit([prepared(store, 1, 0, [("b", 1), ("c", 2), ("b", 3)])])
    assert seen(base) == {"a": 2, "b": 3, "c": 2}


def test_a_delete_leaves_a_tombstone_that_no_late_row_brings_back(upsert, store, base):
    late = prepare(store, 5, a=1, b=1)
    upsert.commit([prepare(store, 4, a=1)])
    upsert.commit([prepare(store, 6, a=None, b=2)])
    upsert.commit([late])
    assert seen(base) == {"b": 2}
    tombstone = list(base.execute("SELECT value, gone FROM totals WHERE id = 'a'"))
    assert tombstone == [(None, True)]
    upsert.commit([prepare(store, 7, a=3)])
    assert seen(base) == {"a": 3, "b": 2}


@pytest.mark.usefixtures("upsert")
def test_two_committers_at_once_end_with_the_same_rows(again: Again, store, base):
    """MySQL makes one of them the victim of a deadlock: it tries again."""
    works = [
        prepare(store, batch, task, **{f"k{n}": batch * 10 + task for n in range(300)})
        for batch in range(3)
        for task in range(2)
    ]
    became: list[object] = []
    each = [again(store) for _ in range(2)]
    threads = [
        threading.Thread(target=lambda it=it, order=order: became.append(it.commit(order)))
        for it, order in zip(each, (works, works[::-1]), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert became == [{work.identity: Outcome.COMMITTED for work in works}] * 2
    assert seen(base) == {f"k{n}": 21 for n in range(300)}


def test_a_database_that_lost_its_data_is_never_taken_for_the_same(upsert, store, how, base):
    member, work = upsert.members[0], prepare(store, 0, a=1)
    base.execute("TRUNCATE airflow_eos_upserts")
    with pytest.raises(OwnershipError, match=r"belongs to nobody.*restore it"):
        upsert.commit([work])
    base.execute("DROP TABLE airflow_eos_upserts")
    with pytest.raises(StoreError, match="its mark is missing"):
        connect(member, how, store=store, timeout_s=30)


def test_a_target_has_one_writer_and_a_new_checkpoint_a_greater_epoch(
    upsert, again: Again, store, base, tmp_path
):
    upsert.commit([prepare(store, 500, a=1)])
    upsert.note(decided(500), owner_at("/a"))
    upsert.note(decided(3, "c"), owner_at("/a"))
    fresh = CheckpointStore.open(tmp_path / "fresh")
    theirs = again(fresh)
    theirs.claim(owner_at(fresh.location))
    with pytest.raises(OwnershipError, match="belongs to the checkpoint"):
        require_at(theirs, fresh.location)
    with pytest.raises(OwnershipError, match="decision of batch 500"):
        require_at(upsert, store.location)
    base.execute(theirs._target.give_up)
    theirs.claim(owner_at(fresh.location))
    require_at(theirs, fresh.location)
    theirs.commit([prepare(fresh, 0, a=2)])
    assert seen(base) == {"a": 2}
    with pytest.raises(OwnershipError, match="Nothing was written"):
        upsert.commit([prepare(store, 501, a=3)])
    with pytest.raises(OwnershipError):
        upsert.note(decided(501), owner_at("/a"))
    assert seen(base) == {"a": 2}


def test_rows_of_another_table_are_never_taken_for_newer_ones_in_silence(
    upsert, again: Again, store, base, tmp_path
):
    """As where a test's table is filled from production's: its epochs are no words of this one."""
    base.execute("INSERT INTO totals VALUES ('a', 9, false, '0000000000000007')")
    work = prepare(store, 0, a=1, b=1)
    with pytest.raises(OwnershipError, match="rows of a greater epoch") as told:
        upsert.commit([work])
    assert upsert.outcome([work]) == {work.identity: Outcome.OPEN}
    assert seen(base) == {"a": 9}
    base.execute(told.value.remedies[0].change)  # as it says
    upsert.claim(owner_at(store.location))
    assert again(store).commit([work]) == {work.identity: Outcome.COMMITTED}
    assert seen(base) == {"a": 1, "b": 1}


def test_what_the_commit_would_refuse_for_its_owner_is_refused_before_it_is_decided(
    upsert, target, base
):
    """A row of a greater epoch, and a target that a person has given to nobody."""
    rows = pa.table({"id": ["a"], "value": [1]})
    base.execute("INSERT INTO totals VALUES ('a', 9, false, '0000000000000007')")
    with pytest.raises(OwnershipError, match="rows of a greater epoch"):
        target.tried(rows, RowSchema(("id",)))
    base.execute("UPDATE totals SET eos_version = '0000000000000001'")
    target.tried(rows, RowSchema(("id",)))
    assert seen(base) == {"a": 9}
    base.execute(target.give_up)
    with pytest.raises(OwnershipError, match="belongs to nobody"):
        target.tried(rows, RowSchema(("id",)))


def test_tasks_of_the_same_keys_in_any_order_are_all_tried(upsert, spec, store, base):
    """While a committer writes them, too: a trial holds up nobody for longer than it takes."""
    keys = [f"k{at:04}" for at in range(1000)]
    rows = pa.table({"id": keys, "value": range(1000)})
    orders = [rows, rows.take(pa.array(range(999, -1, -1)))]

    def tried(at: int) -> None:
        with closing(spec.open(timeout_s=30)) as task:
            for _ in range(3):
                task.tried(orders[at % 2], RowSchema(("id",)))

    with ThreadPoolExecutor(4) as tasks:
        trials = [tasks.submit(tried, at) for at in range(4)]
        for batch in range(3):
            work = prepare(store, batch, **dict.fromkeys(keys, batch))
            assert upsert.commit([work]) == {work.identity: Outcome.COMMITTED}
        assert [trial.result(timeout=60) for trial in trials] == [None] * 4
    assert seen(base) == dict.fromkeys(keys, 2)
