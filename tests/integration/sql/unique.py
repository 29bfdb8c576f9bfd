"""What a table with a unique key owes, whatever database it is: its own module imports these.

A module that does has the fixtures ``unique`` and ``staged``: rows of the latter wait in the
checkpoint.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from airflow_eos.core.delivery.task import HASH_COLUMN, SinkTask, TaskOutput
from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.errors import DecisionNeededError, DeliveryError
from tests.integration.sql.verbs import became
from tests.integration.sql.world import SqlWorld, rows


def test_a_key_twice_in_a_task_is_refused_before_the_decision(unique: SqlWorld):
    writer = unique.sink.opened(0, 0)
    writer.write(rows(1, 2))
    writer.write(rows(2))
    with pytest.raises(DeliveryError, match=r"unique (constraint|key \(id\)).*nothing was made"):
        writer.prepare("0" * 32)
    writer.abort()
    assert unique.participant().open() == ()


def test_a_key_that_the_table_has_already_is_refused_before_the_decision(unique: SqlWorld):
    unique.sql(f"INSERT INTO {unique.tag} VALUES (2, 'there'), (NULL, 'no key')")
    with pytest.raises(DeliveryError, match=r"unique (constraint|key \(id\))"):
        unique.prepare(1, 2)
    assert 1 not in unique.seen()


def test_no_table_is_made_for_rows_that_wait(staged: SqlWorld):
    """Publications, dumps, replicas and watchers of a schema would meet it."""
    before = staged.sql(staged.listing)
    work = staged.prepare(1)
    assert (staged.sql(staged.listing), staged.seen()) == (before, [])
    assert [each.rpartition("/")[2] for each in staged.kept()] == [work.key]
    staged.participant().commit([work])
    assert staged.sql(staged.listing) == before


def test_staged_rows_that_the_table_refuses_are_kept_for_a_person(staged: SqlWorld):
    ours, work = staged.participant(), staged.prepare(1, 2)
    staged.sql(f"INSERT INTO {staged.tag} VALUES (2, 'in the way')")
    with pytest.raises(DecisionNeededError, match=r"unique (constraint|key 'id')") as asked:
        ours.commit([work])
    assert f"eos/kept/orders/rows/{work.key}" in str(asked.value)
    assert (staged.seen(), ours.outcome([work])) == ([2], became([work], Outcome.OPEN))
    staged.sql(f"DELETE FROM {staged.tag}")
    assert ours.commit([work]) == became([work], Outcome.COMMITTED)
    assert staged.seen() == [1, 2]


def test_a_person_can_give_up_what_a_table_refuses(staged: SqlWorld):
    """As ``accept --give-up-open`` does it."""
    ours, works = staged.participant(), [staged.prepare(1), staged.prepare(1, task=1)]
    with pytest.raises(DecisionNeededError):
        ours.commit(works)
    first, second = (work.identity for work in works)
    assert ours.abandon([first, second]) == {first: False, second: True}
    assert ours.commit(works) == {first: Outcome.COMMITTED, second: Outcome.ABORTED}


class Refusing:
    """Another output of the same task, which fails after the first one has prepared."""

    def __init__(self, seen: list[str]) -> None:
        self._seen = seen

    def write(self, _rows: pa.RecordBatch) -> None:
        self._seen.append("written")

    def prepare(self, _fingerprint: str) -> Any:
        raise DeliveryError("the other system is full")

    def abort(self) -> None:
        self._seen.append("aborted")


def hashed(*ids: int) -> pa.RecordBatch:
    return rows(*ids).append_column(HASH_COLUMN, pa.array(ids, pa.int64()))


def test_a_task_that_fails_after_an_output_prepared_leaves_its_retry_no_lock(unique: SqlWorld):
    """Spark runs it again at once, with the same keys; nobody else ends the first attempt."""
    seen: list[str] = []
    ours, before = unique.participant(), unique.holdings()
    outlets = (
        TaskOutput("orders", replace(unique.sink, lock_timeout=timedelta(seconds=0.3)).opened),
        TaskOutput("other", lambda _task, _attempt: Refusing(seen)),
    )
    with pytest.raises(DeliveryError, match="is full"):
        SinkTask(outlets).run(0, 0, iter([hashed(1, 2)]))
    assert seen == ["written", "aborted"]
    assert (ours.open(), unique.holdings()) == ((), before)
    [report] = SinkTask(outlets[:1]).run(0, 1, iter([hashed(1, 2)]))
    assert report.work is not None
    ours.commit([report.work])
    assert unique.seen() == [1, 2]
