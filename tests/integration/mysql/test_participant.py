"""MySQL as a participant: each verb repeated, raced and interrupted."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace
from datetime import timedelta

import msgspec
import pyarrow as pa
import pytest

from airflow_eos.core.participants import connect
from airflow_eos.core.protocol.decision import Outcome, PreparedWork
from airflow_eos.errors import (
    CheckpointFormatError,
    ConfigurationError,
    DecisionNeededError,
    DeliveryError,
    OwnershipError,
    StoreError,
)
from airflow_eos.kinds.mysql.session import connected, done
from airflow_eos.kinds.sql import participant as ledger
from airflow_eos.kinds.sql.kept import KeptStatements
from tests.integration.kept.keeping import decided
from tests.integration.mysql.conftest import World, rows
from tests.integration.postgres.proxy import LosingProxy
from tests.integration.sql.verbs import (  # noqa: F401 - the tests of every database
    became,
    require_owner,
    test_a_commit_again_changes_nothing_twice,
    test_a_commit_and_an_abort_at_once_agree_on_one,
    test_a_commit_between_two_looks_is_no_abort,
    test_a_floor_that_moves_between_the_looks_is_no_abort,
    test_an_abort_takes_nothing_from_readers,
    test_nothing_is_seen_before_the_commit_and_all_of_it_after,
    test_several_committers_at_once_deliver_once,
    test_what_was_aborted_can_never_be_committed,
)
from tests.support.mysql import mysql_server
from tests.support.pipelines import owner_at
from tests.support.servers.mariadb import EmbeddedMariaDb


@pytest.mark.parametrize("reply", ["lost after it was done", "lost before it arrived"])
def test_a_commit_whose_reply_is_lost_is_found_out(world: World, reply: str):
    work = world.prepare()
    with LosingProxy(world.server.port) as proxy:
        my = world.participant(
            url=world.server.url.replace(f"{world.server.port}", f"{proxy.port}")
        )
        proxy.lose(b"\x03COMMIT", after=reply.startswith("lost after"))
        assert my.commit([work]) == became([work], Outcome.COMMITTED)
        assert proxy.lost == 1
        my.close()
    assert world.seen() == [1, 2, 3]


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
    my = world.participant()
    works = [world.prepare(1), world.prepare(2, task=1)]
    my.commit(works[:1])
    world.server.kill()
    back = threading.Timer(0.5, world.server.start)
    back.start()
    assert my.outcome(works) == {
        works[0].identity: Outcome.COMMITTED,
        works[1].identity: Outcome.OPEN,
    }
    back.join()
    assert my.commit(works) == became(works, Outcome.COMMITTED)
    assert world.seen() == [1, 2]


@pytest.mark.long
def test_a_server_that_is_gone_is_no_answer(world: World):
    my, work = world.participant(answer_within=timedelta(seconds=1)), world.prepare()
    world.server.kill()
    try:
        for asked in (lambda: my.outcome([work]), lambda: my.commit([work]), my.open):
            with pytest.raises(StoreError, match="Nothing was guessed"):
                asked()
    finally:
        world.server.start()
    assert my.commit([work]) == became([work], Outcome.COMMITTED)


def test_a_prefix_is_no_beginning_of_another_and_a_participant_no_other(world: World):
    work = world.prepare()
    longer = replace(world.sink, prefix=f"{world.tag}-2")
    shorter = replace(world.sink, prefix=world.tag[:-1])
    other = replace(world.sink, name="totals")
    for sink in (longer, shorter, other):
        my = sink.connect(timedelta(seconds=1))
        assert my.open() == ()
        with pytest.raises(CheckpointFormatError):
            my.abort([work.identity])
    assert world.participant().outcome([work]) == became([work], Outcome.OPEN)


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


def test_it_is_reached_by_its_name_or_kind_and_refused_without(world: World):
    my, work = world.participant(), world.prepare()
    for how in ({"orders": world.server.url}, {"mysql": world.server.url}):
        reached = connect(my.members, how, store=world.store)
        assert reached.outcome([work]) == became([work], Outcome.OPEN)
        assert reached.members[0].is_at(my.members[0])
        reached.close()
    with pytest.raises(ConfigurationError, match=r"orders.*give how to reach its database"):
        connect(my.members, {})


def test_below_the_floor_nothing_is_done_and_nothing_concluded(world: World):
    my, work = world.participant(), world.prepare()
    world.sql(f"UPDATE airflow_eos_names SET generation = 2 WHERE name = "
              f"'{world.tag}.orders'")  # fmt: skip
    assert my.commit([work]) == became([work], Outcome.UNKNOWN)
    assert world.seen() == []
    my.abort([work.identity])
    assert my.outcome([work]) == became([work], Outcome.UNKNOWN)


@pytest.mark.long
def test_old_witnesses_go_and_the_floor_moves_before_them(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ledger, "KEPT_BATCHES", 2)
    works: list[PreparedWork] = []
    for batch in range(5):
        my = world.participant()  # of a run of its own, as availableNow makes them
        my.claim(owner_at("/a"))
        works.append(world.prepare(batch))
        my.claim(owner_at("/a"))
        my.note(decided(batch, works=tuple(works[-1:])), owner_at("/a"))
        my.commit(works[-1:])
    told = my.outcome(works)
    assert [told[work.identity].name for work in works] == [*["UNKNOWN"] * 3, *["COMMITTED"] * 2]
    assert world.seen() == [0, 1, 2, 3, 4]


def test_a_detail_of_another_release_is_refused(world: World):
    my, work = world.participant(), world.prepare()
    strange = msgspec.structs.replace(work, detail={"form": "tape"})
    for asked in (my.check, my.commit, my.outcome):
        with pytest.raises(CheckpointFormatError, match="newer release"):
            asked([strange])
    assert msgspec.json.decode(msgspec.json.encode(work), type=PreparedWork) == work


def test_the_first_checkpoint_owns_the_name_and_an_older_copy_is_refused(world: World):
    my = world.participant()
    my.claim(owner_at("/a"))
    world.participant().claim(owner_at("/b"))
    require_owner(my, "/a")
    with pytest.raises(OwnershipError, match=r"belongs to the checkpoint /a, not to /b.*to NULL"):
        require_owner(my, "/b")
    my.note(decided(7), owner_at("/a"))
    world.participant().note(decided(3, "c"), owner_at("/a"))  # a sleeper's
    require_owner(my, "/a", 7, b7=(decided(7),))
    with pytest.raises(OwnershipError, match=r"decision of batch 7.*older copy"):
        require_owner(my, "/a", 7, b7=(decided(7, "b"),))


def test_a_database_that_forgot_what_was_delivered_is_refused(world: World):
    """A backup that was put back, or a replica that lagged: nobody delivers those rows again."""
    my, works = world.participant(), [world.prepare(1), world.prepare(2, task=1)]
    before = decided(7, works=tuple(works))
    my.commit(works)
    require_owner(my, "/a", 8, b7=(before,))
    world.sql(f"DELETE FROM airflow_eos_works WHERE work_key = '{works[1].key}'")
    with pytest.raises(OwnershipError, match=rf"1 of its rows any more.*{works[1].key}.*0 rows"):
        require_owner(my, "/a", 8, b7=(before,))
    given = f"('{works[1].key}', '{world.tag}.orders', 0)"
    world.sql(f"INSERT INTO airflow_eos_works (work_key, name, row_count) VALUES {given}")
    require_owner(my, "/a", 8, b7=(before,))


def test_witnesses_that_are_gone_do_not_say_that_nothing_was_committed(world: World):
    """Somebody emptied a table that grows, or dropped it: the batch in flight came twice."""
    my, works = world.participant(), [world.prepare(1), world.prepare(2, task=1)]
    my.commit(works)
    (mark,) = (each.address["mark"] for each in my.members)
    world.sql(f"DELETE FROM airflow_eos_works WHERE name = '{world.tag}.orders'")
    for asked in (my.outcome, my.commit, world.participant().outcome):
        with pytest.raises(StoreError, match=r"witnesses of the .* are gone") as refused:
            asked(works)
    assert mark in refused.value.remedies[1].change
    for key in (works[0].key, works[1].key, mark):  # as it says
        given = f"('{key}', '{world.tag}.orders', 0)"
        world.sql(f"INSERT INTO airflow_eos_works (work_key, name, row_count) VALUES {given}")
    assert set(world.participant().outcome(works).values()) == {Outcome.COMMITTED}


def test_staged_rows_that_the_table_refuses_are_kept_for_a_person(unique: World):
    my, work = unique.participant(), unique.prepare(1, 2)
    unique.sql(f"INSERT INTO {unique.tag} VALUES (2, 'in the way')")
    with pytest.raises(DecisionNeededError, match="second row for the unique key 'id'") as asked:
        my.commit([work])
    assert f"eos/kept/orders/rows/{work.key}" in str(asked.value)
    assert (unique.seen(), my.outcome([work])) == ([2], became([work], Outcome.OPEN))
    unique.sql(f"DELETE FROM {unique.tag}")
    assert my.commit([work]) == became([work], Outcome.COMMITTED)
    assert unique.seen() == [1, 2]


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


def test_a_person_can_give_up_what_a_table_refuses(unique: World):
    my = unique.participant()
    works = [unique.prepare(1), unique.prepare(1, task=1)]
    with pytest.raises(DecisionNeededError):
        my.commit(works)
    assert my.abandon([work.identity for work in works]) == {
        works[0].identity: False,
        works[1].identity: True,
    }
    assert my.commit(works) == {
        works[0].identity: Outcome.COMMITTED,
        works[1].identity: Outcome.ABORTED,
    }


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
