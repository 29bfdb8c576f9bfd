"""PostgreSQL as a participant, in both forms: each verb repeated, raced and interrupted."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from signal import SIGQUIT

import msgspec
import psycopg
import pytest

from airflow_eos.core.participants import connect
from airflow_eos.core.protocol.decision import Outcome, PreparedWork
from airflow_eos.errors import (
    CheckpointFormatError,
    ConfigurationError,
    DecisionNeededError,
    StoreError,
)
from airflow_eos.kinds.postgres.sink import PostgresSink
from tests.integration.postgres.conftest import World, rows
from tests.integration.postgres.proxy import LosingProxy
from tests.integration.sql.verbs import (  # noqa: F401 - the tests of every database
    became,
    test_a_commit_again_changes_nothing_twice,
    test_a_commit_and_an_abort_at_once_agree_on_one,
    test_a_commit_between_two_looks_is_no_abort,
    test_a_floor_that_moves_between_the_looks_is_no_abort,
    test_an_abort_takes_nothing_from_readers,
    test_nothing_is_seen_before_the_commit_and_all_of_it_after,
    test_several_committers_at_once_deliver_once,
    test_what_was_aborted_can_never_be_committed,
)
from tests.support.servers.postgres import EmbeddedPostgres


@pytest.mark.parametrize("reply", ["lost after it was done", "lost before it arrived"])
def test_a_commit_whose_reply_is_lost_is_found_out(world: World, reply: str):
    work = world.prepare()
    with LosingProxy(world.server.port) as proxy:
        pg = world.participant(dsn=world.server.dsn_of("postgres", port=proxy.port))
        proxy.lose(
            b"COMMIT PREPARED" if world.two_phase else b"COMMIT\0",
            after=reply.startswith("lost after"),
        )
        assert pg.commit([work]) == became([work], Outcome.COMMITTED)
        assert proxy.lost == 1
        pg.close()
    assert world.seen() == [1, 2, 3]


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


def test_a_server_that_crashes_in_the_middle_loses_nothing(world: World):
    pg = world.participant()
    works = [world.prepare(1), world.prepare(2, task=1)]
    pg.commit(works[:1])
    world.server.stop(how=SIGQUIT)
    back = threading.Timer(0.5, world.server.start)
    back.start()
    assert pg.outcome(works) == {
        works[0].identity: Outcome.COMMITTED,
        works[1].identity: Outcome.OPEN,
    }
    back.join()
    assert pg.commit(works) == became(works, Outcome.COMMITTED)
    assert world.seen() == [1, 2]


@pytest.mark.long
def test_a_server_that_is_gone_is_no_answer(world: World):
    pg, work = world.participant(answer_within=timedelta(seconds=1)), world.prepare()
    world.server.stop()
    try:
        for asked in (lambda: pg.outcome([work]), lambda: pg.commit([work]), pg.open):
            with pytest.raises(StoreError, match="Nothing was guessed"):
                asked()
    finally:
        world.server.start()
    assert pg.commit([work]) == became([work], Outcome.COMMITTED)


def test_a_prefix_is_no_beginning_of_another_and_a_participant_no_other(world: World):
    work = world.prepare()
    longer = replace(world.sink, gid_prefix=f"{world.tag}-2")
    shorter = replace(world.sink, gid_prefix=world.tag[:-1])
    other = replace(world.sink, name="totals")
    for sink in (longer, shorter, other):
        pg = sink.connect(timedelta(seconds=1))
        assert pg.open() == ()
        with pytest.raises(CheckpointFormatError):
            pg.abort([work.identity])
    theirs = world.prepare(4, name="orders-2")
    pg = world.participant()
    assert [each.key for each in pg.open()] == [work.key]
    assert pg.outcome([work]) == became([work], Outcome.OPEN)
    assert world.participant(name="orders-2").abort([theirs.identity]) == {theirs.identity: True}


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


def test_it_is_reached_by_its_name_or_kind_and_refused_without(world: World):
    pg, work = world.participant(), world.prepare()
    for how in ({"orders": world.server.dsn}, {"postgres": {"dsn": world.server.dsn}}):
        reached = connect(pg.members, how, store=world.store)
        assert reached.outcome([work]) == became([work], Outcome.OPEN)
        assert reached.members[0].is_at(pg.members[0])
        reached.close()
    with pytest.raises(ConfigurationError, match=r"orders.*give how to reach its database"):
        connect(pg.members, {})


def test_below_the_floor_nothing_is_done_and_nothing_concluded(world: World):
    pg, work = world.participant(), world.prepare()
    world.sql(f"UPDATE airflow_eos.names SET generation = 2 WHERE name = "
              f"'{world.tag}.orders'")  # fmt: skip
    assert pg.commit([work]) == became([work], Outcome.UNKNOWN)
    assert world.seen() == []
    pg.abort([work.identity])
    assert pg.outcome([work]) == became([work], Outcome.UNKNOWN)
    assert pg.commit([work]) == became([work], Outcome.UNKNOWN)


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


def test_a_detail_of_another_release_is_refused(world: World):
    pg, work = world.participant(), world.prepare()
    strange = msgspec.structs.replace(work, detail={"form": "tape"})
    for asked in (pg.check, pg.commit, pg.outcome):
        with pytest.raises(CheckpointFormatError, match="newer release"):
            asked([strange])
    assert msgspec.json.decode(msgspec.json.encode(work), type=PreparedWork) == work


def test_staged_rows_that_the_table_refuses_are_kept_for_a_person(server):
    world = World(server, two_phase=False, columns="id bigint UNIQUE, name text")
    pg, work = world.participant(), world.prepare(1, 2)
    world.sql(f"INSERT INTO {world.tag} VALUES (2, 'in the way')")
    with pytest.raises(DecisionNeededError, match="unique"):
        pg.commit([work])
    assert (world.seen(), pg.outcome([work])) == ([2], became([work], Outcome.OPEN))
    world.sql(f"DELETE FROM {world.tag}")
    assert pg.commit([work]) == became([work], Outcome.COMMITTED)
    assert world.seen() == [1, 2]


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
