"""PostgreSQL as a participant, in both forms: each verb repeated, raced and interrupted."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import msgspec
import psycopg
import pytest

from airflow_eos.core.participants import connect
from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.errors import (
    CheckpointFormatError,
    ConfigurationError,
    DecisionNeededError,
    StoreError,
)
from airflow_eos.kinds.postgres.sink import PostgresSink
from tests.integration.postgres.conftest import World, rows
from tests.integration.postgres.proxy import LosingProxy
from tests.integration.sql.verbs import *  # noqa: F403 - the tests of every database
from tests.integration.sql.verbs import became, lose_nothing
from tests.support.servers.postgres import EmbeddedPostgres


def test_a_task_whose_prepare_loses_its_reply_leaves_nothing(world: World):
    pg = world.participant()
    with LosingProxy(world.server.port) as proxy:
        sink = replace(world.sink, dsn=world.server.dsn_of("postgres", port=proxy.port))
        proxy.lose(b"PREPARE TRANSACTION" if world.two_phase else b"ROLLBACK\0", after=True)
        writer = sink.opened(0, 0)
        writer.write(rows(1))
        if world.two_phase:
            with pytest.raises(Exception, match="preparing the transaction"):
                writer.prepare("0" * 32)
        else:
            assert writer.prepare("0" * 32) is not None, "a trial is tried again"
        assert proxy.lost == 1
        writer.abort()
    listed = {each.identity for each in pg.open()}
    assert (world.seen(), listed) == ([], set())


def test_tasks_of_a_worker_share_a_connection_and_two_outputs_of_one_task_do_not(world: World):
    """To connect costs a small batch more than to write its rows."""
    world = World(
        world.server,
        world.two_phase,
        columns="id bigint, name text, pid int DEFAULT pg_backend_pid()",
    )
    pg = world.participant()
    pg.commit([world.prepare(number, task=number) for number in (1, 2)])
    one, other = (world.sink.opened(task, 0) for task in (3, 4))
    for number, writer in ((3, one), (4, other)):
        writer.write(rows(number))
    one.abort()  # in the middle of a COPY
    work = other.prepare("0" * 32)
    assert work is not None
    pg.commit([work, world.prepare(5, task=5)])
    pid = dict(world.sql(f"SELECT id, pid FROM {world.tag}"))
    assert pid.keys() == {1, 2, 4, 5}
    assert (pid[1] == pid[2], pid[2] == pid[4], pid[4] == pid[5]) == (True, False, True)


def test_what_the_server_ended_between_two_tasks_is_not_missed(world: World):
    """A restart, a limit of its role, a person: the next task connects again."""
    pg, works = world.participant(), [world.prepare(1)]
    world.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'airflow_eos' AND backend_type = 'client backend'"
    )
    works.append(world.prepare(2, task=1))
    pg.commit(works)
    assert world.seen() == [1, 2]


def test_a_server_that_crashes_in_the_middle_loses_nothing(world: World):
    lose_nothing(world)


def test_of_two_pipelines_with_one_prefix_in_two_schemas_neither_ends_the_others_work(world: World):
    """As of a test and a production in one database, which lists all prepared transactions."""
    pg, beside = world.participant(), world.participant(schema="airflow_eos_beside")
    work, theirs = world.prepare(1), world.prepare(2, schema="airflow_eos_beside")
    assert [each.key for each in pg.open()] == [work.key]
    assert [each.key for each in beside.open()] == [theirs.key]
    with pytest.raises(CheckpointFormatError, match="is no key of"):
        pg.abort([theirs.identity])
    assert beside.commit([theirs]) == became([theirs], Outcome.COMMITTED)
    assert world.seen() == [2]


def test_another_database_concludes_nothing(world: World):
    """The whole batch would be replayed into it."""
    pg, work = world.participant(), world.prepare()
    pg.commit([work])
    elsewhere = f"db_{world.tag}"
    world.sql(f"CREATE DATABASE {elsewhere}")
    dsn = world.server.dsn_of(elsewhere)
    with pytest.raises(ConfigurationError, match=r"airflow_eos\.names"):
        connect(pg.members, {"postgres": dsn})
    other = PostgresSink(dsn, table="pg_class", gid_prefix=world.tag, name="orders")
    other.connect(timedelta(seconds=1)).close()  # somebody's pipeline of the same name
    with pytest.raises(StoreError, match=r"not the database.*Nothing was concluded"):
        connect(pg.members, {"postgres": dsn})


def test_work_of_another_system_is_never_called_aborted(world: World):
    pg, work = world.participant(), world.prepare()
    if world.two_phase:
        pg.abort([work.identity])
    world.store.delete(world.kept())
    theirs = msgspec.structs.replace(work, detail=work.detail | {"system": "1/elsewhere"})
    assert pg.outcome([theirs]) == became([theirs], Outcome.UNKNOWN)
    later = msgspec.structs.replace(work, detail=work.detail | {"timeline": 9})
    with pytest.raises(StoreError, match="left behind by a failover"):
        pg.outcome([later])


def test_staged_rows_that_would_not_all_arrive_do_not_arrive(server):
    world = World(server, two_phase=False)
    pg, work = world.participant(), world.prepare(1, 2)
    world.sql(
        f"CREATE FUNCTION {world.tag}() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN IF NEW.id = 2 THEN RETURN NULL; END IF; RETURN NEW; END'"
    )
    world.sql(f"CREATE TRIGGER t BEFORE INSERT ON {world.tag} FOR EACH ROW "
              f"EXECUTE FUNCTION {world.tag}()")  # fmt: skip
    with pytest.raises(DecisionNeededError, match="2 rows were promised, and 1 would arrive"):
        pg.commit([work])
    assert (world.seen(), pg.outcome([work])) == ([], became([work], Outcome.OPEN))


@pytest.mark.long
def test_a_commit_waits_for_a_lock_as_long_as_the_sink_was_told(server: EmbeddedPostgres):
    """Of staged rows: what is prepared has its locks."""
    world = World(server, two_phase=False, columns="id bigint UNIQUE, name text")
    pg, work = world.participant(lock_timeout=timedelta(seconds=1)), world.prepare(1)
    with psycopg.connect(server.dsn) as other:
        other.execute(f"INSERT INTO {world.tag} VALUES (1, 'not yet')")
        with pytest.raises(StoreError, match="longer than lock_timeout"):
            pg.commit([work])
        other.rollback()
    pg.commit([work])
    assert world.seen() == [1]
