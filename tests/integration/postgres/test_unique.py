"""Unique keys, in both forms: what can be found is found before the decision, by the task."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from airflow_eos.core.delivery.task import HASH_COLUMN, SinkTask, TaskOutput
from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.errors import ConfigurationError, DecisionNeededError, DeliveryError, StoreError
from airflow_eos.kinds.postgres.sink import require_slots
from tests.integration.postgres.conftest import World, end_all, rows
from tests.support.servers.postgres import EmbeddedPostgres

UNIQUE = "id bigint UNIQUE, name text"


@pytest.fixture
def staged(server: EmbeddedPostgres) -> World:
    made = World(server, two_phase=False, columns=UNIQUE)
    made.participant().close()
    return made


@pytest.fixture(params=[True, False], ids=["two-phase", "staged"])
def unique(server: EmbeddedPostgres, request: pytest.FixtureRequest):
    made = World(server, request.param, columns=UNIQUE)
    made.participant().close()
    yield made
    end_all(made)


def test_a_key_twice_in_a_task_is_refused_before_the_decision(unique: World):
    writer = unique.sink.opened(0, 0)
    writer.write(rows(1, 2))
    writer.write(rows(2))
    with pytest.raises(DeliveryError, match=r"unique constraint.*nothing was made visible"):
        writer.prepare("0" * 32)
    writer.abort()
    assert unique.participant().open() == ()


def test_a_key_that_the_table_has_already_is_refused_before_the_decision(unique: World):
    unique.sql(f"INSERT INTO {unique.tag} VALUES (2, 'there'), (NULL, 'no key')")
    with pytest.raises(DeliveryError, match="unique"):
        unique.prepare(1, 2)
    assert unique.seen()[0] == 2


def test_a_null_is_no_key_and_a_column_that_the_rows_lack_is_the_tables(server: EmbeddedPostgres):
    world = World(
        server, two_phase=False, columns="n serial PRIMARY KEY, id bigint UNIQUE, name text"
    )
    pg = world.participant()
    world.sql(f"INSERT INTO {world.tag} (id) VALUES (NULL)")
    writer = world.sink.opened(0, 0)
    writer.write(rows(1, 2).set_column(0, "id", pa.array([None, None], pa.int64())))
    work = writer.prepare("0" * 32)
    assert work is not None
    assert pg.commit([work]) == {work.identity: Outcome.COMMITTED}
    assert world.sql(f"SELECT count(*), max(n) FROM {world.tag}") == [(3, 3)]


def test_no_table_is_made_for_rows_that_wait(staged: World):
    """Publications, dumps and watchers of a schema would meet it. The rows have met their table."""
    before = staged.sql("SELECT count(*) FROM pg_class")
    work = staged.prepare(1)
    assert (staged.sql("SELECT count(*) FROM pg_class"), staged.seen()) == (before, [])
    assert [each.rpartition("/")[2] for each in staged.kept()] == [work.key]
    staged.participant().commit([work])
    assert staged.sql("SELECT count(*) FROM pg_class") == before


def test_a_key_in_two_tasks_is_foretold_and_asks_a_person_who_is_told_what_to_do(staged: World):
    """Neither task can see the other's rows."""
    with capture_logs() as logs:
        pg = staged.participant()
    [told] = [entry for entry in logs if entry["event"] == "decided_rows_may_be_refused"]
    assert "(id)" in told["by"]
    assert "repartition" in told["hint"]
    works = [staged.prepare(1), staged.prepare(1, 2, task=1)]
    with pytest.raises(DecisionNeededError) as asked:
        pg.commit(works)
    where = f"eos/kept/orders/rows/{works[1].key}"
    for each in ("unique", where, "docs/recovery.md", "Rows that a table refuses"):
        assert each in str(asked.value)
    assert (staged.seen(), pg.outcome(works)[works[1].identity]) == ([1], Outcome.OPEN)
    staged.sql(f"UPDATE {staged.tag} SET id = 3 WHERE id = 1")
    pg.commit(works)
    assert staged.seen() == [1, 2, 3]


def test_a_person_can_give_up_what_a_table_refuses(staged: World):
    """As ``accept --give-up-open`` does it."""
    pg = staged.participant()
    works = [staged.prepare(1), staged.prepare(1, task=1)]
    with pytest.raises(DecisionNeededError):
        pg.commit(works)
    assert pg.abandon([works[1].identity]) == {works[1].identity: True}
    assert pg.commit(works) == {
        works[0].identity: Outcome.COMMITTED,
        works[1].identity: Outcome.ABORTED,
    }


def test_a_table_that_cannot_refuse_a_decided_row_is_not_warned_of(server: EmbeddedPostgres):
    with capture_logs() as logs:
        World(server, two_phase=False).participant()
        World(server, columns=UNIQUE).participant()  # two-phase: refused before the decision
    assert [entry for entry in logs if entry["event"] == "decided_rows_may_be_refused"] == []


def test_who_waits_for_another_task_is_not_sent_where_it_would_wait_for_ever(server):
    world = World(server, columns=UNIQUE)
    pg, first = world.participant(), world.prepare(1)
    with pytest.raises(StoreError, match="Repartition by the key") as waited:
        world.prepare(1, task=1, lock_timeout=timedelta(seconds=0.2))
    assert "two_phase=False" not in str(waited.value)
    pg.abort([first.identity])


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


def test_a_task_that_fails_after_an_output_prepared_leaves_its_retry_no_lock(unique: World):
    """Spark runs it again at once, with the same keys; nobody else ends the first attempt."""
    seen: list[str] = []
    pg = unique.participant()
    outlets = (
        TaskOutput("orders", replace(unique.sink, lock_timeout=timedelta(seconds=0.3)).opened),
        TaskOutput("other", lambda _task, _attempt: Refusing(seen)),
    )
    with pytest.raises(DeliveryError, match="is full"):
        SinkTask(outlets).run(0, 0, iter([hashed(1, 2)]))
    assert seen == ["written", "aborted"]
    assert pg.open() == ()
    [report] = SinkTask(outlets[:1]).run(0, 1, iter([hashed(1, 2)]))
    assert report.work is not None
    pg.commit([report.work])
    assert unique.seen() == [1, 2]


def test_what_was_visible_at_once_is_not_taken_back(unique: World):
    unique.participant()
    outlets = (
        TaskOutput("orders", lambda t, a: unique.sink.opened(t, a, transactional=False)),
        TaskOutput("other", lambda _task, _attempt: Refusing([])),
    )
    with pytest.raises(DeliveryError, match="is full"):
        SinkTask(outlets).run(0, 0, iter([hashed(1)]))
    assert unique.seen() == [1]


@pytest.mark.long
def test_two_outputs_at_one_server_need_the_slots_of_both_and_the_error_says_so():
    with EmbeddedPostgres(max_prepared_transactions=2) as server:
        worlds = World(server), World(server)
        for each in worlds:  # each looks for itself: two for one task
            each.participant(tasks=1)
        for each in worlds:
            each.prepare(1)
        with pytest.raises(ConfigurationError, match=r"several outputs.*sum"):
            worlds[0].prepare(2, task=1)
        with pytest.raises(ConfigurationError, match=r"several outputs.*sum"):
            worlds[0].sink._ask("", lambda c: require_slots(c, worlds[0].sink._tables.name, 1))
        for each in worlds:
            end_all(each)


def test_a_null_that_is_a_key_is_found_before_the_decision(server: EmbeddedPostgres):
    world = World(server, two_phase=False, columns="id bigint, name text")
    world.sql(f"CREATE UNIQUE INDEX ON {world.tag} (name) NULLS NOT DISTINCT")
    world.sql(f"INSERT INTO {world.tag} VALUES (0, NULL)")
    world.participant().close()
    writer = world.sink.opened(0, 0)
    writer.write(
        pa.RecordBatch.from_pydict({"id": pa.array([1]), "name": pa.nulls(1, pa.string())})
    )
    with pytest.raises(DeliveryError, match=r"has a row with the unique key \(\w+_name_idx\)"):
        writer.prepare("0" * 32)
    writer.abort()


def test_a_rule_takes_no_row_elsewhere(unique: World):
    """A rule is for INSERT, and rows come by COPY."""
    unique.sql(f"CREATE RULE none AS ON INSERT TO {unique.tag} DO INSTEAD NOTHING")
    unique.participant().commit([unique.prepare(1, 2)])
    assert unique.seen() == [1, 2]
