"""Unique keys, in both forms: what can be found is found before the decision, by the task."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from airflow_eos.core.delivery.task import SinkTask, TaskOutput
from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.errors import ConfigurationError, DecisionNeededError, DeliveryError, StoreError
from airflow_eos.kinds.postgres.sink import require_slots
from tests.integration.postgres.conftest import UNIQUE, World, end_all, rows
from tests.integration.sql.unique import *  # noqa: F403 - the tests of every database
from tests.integration.sql.unique import Refusing, hashed
from tests.support.servers.postgres import EmbeddedPostgres


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
