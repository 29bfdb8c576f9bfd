"""MySQL as a participant: each verb repeated, raced and interrupted."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import msgspec
import pyarrow as pa
import pytest

from airflow_eos.core.participants import connect
from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.errors import (
    DecisionNeededError,
    DeliveryError,
    StoreError,
)
from airflow_eos.kinds.mysql.session import connected, done
from airflow_eos.kinds.sql.kept import KeptStatements
from tests.integration.kept.keeping import decided
from tests.integration.mysql.conftest import World, rows
from tests.integration.postgres.proxy import LosingProxy
from tests.integration.sql.verbs import *  # noqa: F403 - the tests of every database
from tests.integration.sql.verbs import became, lose_nothing
from tests.support.mysql import mysql_server
from tests.support.pipelines import owner_at
from tests.support.servers.mariadb import EmbeddedMariaDb


def test_a_task_whose_last_reply_is_lost_leaves_nothing(world: World):
    my = world.participant()
    with LosingProxy(world.server.port) as proxy:
        url = world.server.url.replace(f"{world.server.port}", f"{proxy.port}")
        writer = replace(world.sink, url=url).opened(0, 0)
        writer.write(rows(1))
        proxy.lose(b"\x03ROLLBACK", after=True)
        assert writer.prepare("0" * 32) is not None, "a trial is tried again"
        assert proxy.lost == 1
        writer.abort()
    assert (world.seen(), my.open()) == ([], ())


def test_what_the_server_ended_between_two_tasks_is_not_missed(world: World):
    """Its wait_timeout, a restart, a person: the next task connects again."""
    my, works = world.participant(), [world.prepare(1)]
    others = "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND db > ''"
    for (number,) in world.sql(others):
        world.sql(f"KILL {number}")
    works.append(world.prepare(2, task=1))
    my.commit(works)
    assert world.seen() == [1, 2]


def test_what_a_crash_left_of_ended_work_is_swept(world: World, monkeypatch: pytest.MonkeyPatch):
    """A driver may die between the commit and the removal of what was kept."""
    my, works = world.participant(), [world.prepare(1), world.prepare(2, task=1)]
    with monkeypatch.context() as dying:
        dying.setattr(KeptStatements, "forget", lambda *_: None)
        my.commit(works[:1])
        my.abort([works[1].identity])
    assert (len(world.kept()), my.open(), world.seen()) == (2, (), [1])
    assert my.outcome(works) == {
        works[0].identity: Outcome.COMMITTED,
        works[1].identity: Outcome.ABORTED,
    }
    my.claim(owner_at("/a"))
    my.note(decided(1), owner_at("/a"))
    assert world.kept() == []


def test_rows_of_a_task_that_was_given_up_for_lost_are_kept_late_and_aborted_by_the_next(
    world: World,
):
    my, zombie = world.participant(), world.sink.opened(1, 0)
    zombie.write(rows(7))
    assert my.open() == ()
    work = zombie.prepare("0" * 32)
    assert work is not None
    assert [each.key for each in my.open()] == [work.key]
    assert my.abort([work.identity]) == {work.identity: True}
    assert (world.seen(), world.kept()) == ([], [])


@pytest.mark.long
def test_a_server_that_is_killed_in_the_middle_loses_nothing(world: World):
    lose_nothing(world)


def test_another_database_concludes_nothing(world: World):
    """The whole batch would be replayed into it."""
    my, work = world.participant(), world.prepare()
    my.commit([work])
    mark = my.members[0].address["mark"]
    world.sql(f"UPDATE airflow_eos_names SET mark = 'other' WHERE mark = '{mark}'")
    for asked in (lambda: my.outcome([work]), my.open, lambda: my.claim(owner_at("/a"))):
        with pytest.raises(StoreError, match=r"not the database.*Nothing was concluded"):
            asked()
    with pytest.raises(StoreError, match="not the database"):
        connect(my.members, {"mysql": world.server.url})
    world.sql(f"UPDATE airflow_eos_names SET mark = '{mark}' WHERE mark = 'other'")


@pytest.mark.parametrize(
    ("changed", "number", "mended"),
    [
        ("CHANGE name label text", "1054", "CHANGE label name text"),
        (
            "PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (2))",
            "1526",
            "REMOVE PARTITIONING",
        ),
        (
            "DROP COLUMN name, ADD COLUMN name text AS ('x') VIRTUAL",
            "1906|3105",  # MariaDB and MySQL number it each their own way
            "DROP COLUMN name, ADD COLUMN name text",
        ),
    ],
)
def test_a_table_changed_after_the_decision_asks_a_person(
    world: World, changed: str, number: str, mended: str
):
    my, work = world.participant(), world.prepare(1, 2)
    world.sql(f"ALTER TABLE {world.tag} {changed}")
    with pytest.raises(DecisionNeededError, match=rf"({number}).*Was the table changed") as asked:
        my.commit([work])
    assert f"eos/kept/orders/rows/{work.key}" in str(asked.value)
    assert my.outcome([work]) == became([work], Outcome.OPEN)
    world.sql(f"ALTER TABLE {world.tag} {mended}")
    assert my.commit([work]) == became([work], Outcome.COMMITTED)
    assert world.seen() == [1, 2]


def test_rows_that_would_not_all_arrive_do_not_arrive(world: World):
    my, work = world.participant(), world.prepare(1, 2)
    more = msgspec.structs.replace(work, rows=3)
    with pytest.raises(DecisionNeededError, match="3 rows were promised, and 2 would arrive"):
        my.commit([more])
    assert (world.seen(), my.outcome([work])) == ([], became([work], Outcome.OPEN))


def test_rows_that_wait_are_moved_whatever_the_server_is_set_to(server: EmbeddedMariaDb):
    """A table of another engine would have no transaction: refused; a lax mode changes nothing."""
    world = World(server)
    my, work = world.participant(), world.prepare(1)
    with closing(connected(server.url, lock_timeout_s=5, timeout_s=5)) as connection:
        done(connection, f"ALTER TABLE {world.tag} ADD COLUMN n int NOT NULL DEFAULT 5")
    my.commit([work])
    assert world.sql(f"SELECT id, n FROM {world.tag}") == [(1, 5)]


@pytest.mark.parametrize("column", ["id bigint PRIMARY KEY AUTO_INCREMENT", "id bigint NOT NULL"])
def test_a_null_that_the_table_would_replace_is_refused(server: EmbeddedMariaDb, column: str):
    """By another number or time at the commit than in the trial."""
    world = World(server, columns=f"{column}, name text")
    world.participant().close()
    writer = world.sink.opened(0, 0)
    with pytest.raises(DeliveryError, match="A row has no id"):
        writer.write(pa.RecordBatch.from_pydict({"id": pa.nulls(1, pa.int64()), "name": ["a"]}))
    writer.abort()
    assert world.participant().open() == ()


@pytest.mark.long
def test_what_is_noted_stays_where_a_commit_would_begin_the_next_transaction():
    """``completion_type``: what follows it in autocommit would be rolled back at the end."""
    with mysql_server("--completion-type=1") as server:
        world = World(server)
        mine, work = world.participant(), world.prepare(1)
        mine.abort([work.identity])
        mine.claim(owner_at("/a"))
        mine.commit([work])  # finds nothing, and rolls back
        mine.claim(owner_at("/a"))
        mine.note(decided(0), owner_at("/a"))
        assert world.sql("SELECT batch FROM airflow_eos_names") == [(0,)]
        mine.close()
