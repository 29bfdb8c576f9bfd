"""Rows that wait in the checkpoint, and other people's tools at the same server."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import pyarrow as pa
import pymysql
import pytest

from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.errors import ConfigurationError, DecisionNeededError
from tests.integration.kept.keeping import decided
from tests.integration.mysql.conftest import World, rows
from tests.integration.sql.keeping import *  # noqa: F403 - the tests of every database
from tests.integration.sql.verbs import became
from tests.support.mysql import TOLD, as_root, mysql_server
from tests.support.pipelines import owner_at
from tests.support.servers.mariadb import EmbeddedMariaDb

_MARIADB_ALONE = pytest.mark.skipif(TOLD is not None, reason="of MariaDB's replication")


def test_a_dump_is_whole_while_a_stream_delivers(world: World):
    """It ended with 2, at a table that had been listed and was gone."""
    program = shutil.which("mariadb-dump") or pytest.skip("no mariadb-dump")
    url = urlsplit(world.server.url)
    my, ended = world.participant(), threading.Event()
    first = f"aaa_{world.tag}"  # it is dumped first, and fills the pipe
    world.sql(f"CREATE TABLE {first} (v longtext)")
    world.sql(f"INSERT INTO {first} VALUES (repeat('x', 8000000))")

    def deliver() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            my.commit([world.prepare(number)])

    stream = threading.Thread(target=deliver)
    given = [program, "--no-defaults", "-h127.0.0.1", f"-P{url.port}", f"-u{url.username}"]
    environment = {**os.environ, "MYSQL_PWD": url.password or ""}
    with subprocess.Popen(
        [*given, "--single-transaction", "eos"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as dump:  # fmt: skip
        assert dump.stdout is not None
        dump.stdout.read(1 << 20)
        stream.start()
        try:
            seen = len(world.seen())
            while len(world.seen()) < seen + 3:
                time.sleep(0.01)
            _, said = dump.communicate()
        finally:
            ended.set()
            stream.join()
    assert (dump.returncode, said.decode()) == (0, "")
    world.sql(f"DROP TABLE {first}")


@contextmanager
def replicated(binlog: str, *filters: str) -> Iterator[tuple[EmbeddedMariaDb, EmbeddedMariaDb]]:
    """A primary with a binary log, and a replica that takes what its filters let through."""
    with ExitStack() as stack:
        primary, replica = (
            stack.enter_context(EmbeddedMariaDb(*each))
            for each in (
                ("--server-id=1", "--log-bin=log", f"--binlog-format={binlog}", "--sync-binlog=1"),
                ("--server-id=2", *filters),
            )
        )
        as_root(primary)("CREATE USER copy@'%' IDENTIFIED BY 'x'")
        as_root(primary)("GRANT REPLICATION SLAVE ON *.* TO copy@'%'")
        with (
            pymysql.connect(
                unix_socket=f"{primary._folder}/socket", user="root", autocommit=True
            ) as at,
            at.cursor() as cursor,
        ):
            cursor.execute("SHOW MASTER STATUS")
            file, position, *_ = cursor.fetchone()
        as_root(replica)(
            f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {primary.port}, "
            f"MASTER_USER = 'copy', MASTER_PASSWORD = 'x', MASTER_LOG_FILE = '{file}', "
            f"MASTER_LOG_POS = {position}, MASTER_CONNECT_RETRY = 1"
        )
        yield primary, replica


@_MARIADB_ALONE
@pytest.mark.parametrize("binlog", ["MIXED", "ROW", "STATEMENT"])
@pytest.mark.parametrize("by", ["table", "database"])
def test_a_replica_that_takes_only_some_tables_goes_on(binlog: str, by: str):
    """It stood still on an INSERT … SELECT from a table that it does not have."""
    rule = "--replicate-do-table=eos.orders" if by == "table" else "--replicate-do-db=eos"
    with replicated(binlog, rule) as (primary, replica):
        world = World(primary, columns="id bigint PRIMARY KEY, name text", tag="orders")
        as_root(replica)("START SLAVE")
        my = world.participant()
        my.claim(owner_at("/a"))
        works = [world.prepare(1, 2), world.prepare(3, task=1), world.prepare(4, task=2)]
        my.note(decided(1, works=tuple(works[:2])), owner_at("/a"))
        my.commit(works[:2])
        my.abort([works[2].identity])
        world.sql("INSERT INTO orders VALUES (9, 'of another program')")
        require_followed(replica, [(1,), (2,), (3,), (9,)])


def require_followed(replica: EmbeddedMariaDb, expected: list[tuple[int]]) -> None:
    end, found = time.monotonic() + 60, ()
    with (
        pymysql.connect(
            unix_socket=f"{replica._folder}/socket", user="root", autocommit=True
        ) as at,
        at.cursor() as cursor,
    ):
        while list(found) != expected:
            cursor.execute("SHOW SLAVE STATUS")
            names = [each[0] for each in cursor.description]
            status = dict(zip(names, cursor.fetchone(), strict=True))
            assert not status["Last_SQL_Error"], status["Last_SQL_Error"]
            assert time.monotonic() < end, status
            cursor.execute("SELECT count(*) FROM information_schema.tables "
                           "WHERE table_schema = 'eos' AND table_name = 'orders'")  # fmt: skip
            if cursor.fetchone() == (1,):
                cursor.execute("SELECT id FROM eos.orders ORDER BY id")
                found = cursor.fetchall()
            time.sleep(0.05)


@pytest.mark.parametrize("engine", ["MyISAM", "Aria"])
def test_a_trigger_that_writes_where_nothing_is_rolled_back_is_refused_with_both_ways_on(
    world: World, engine: str
):
    """It wrote twice for each row: in the trial, and at the commit."""
    if engine == "Aria" and TOLD is not None:
        pytest.skip("MySQL has no Aria")
    log = f"{world.tag}_log"
    my = world.participant(trial=False)
    world.sql(f"CREATE TABLE {log} (id bigint) ENGINE = {engine}")
    world.sql(f"CREATE TRIGGER {world.tag}_t AFTER INSERT ON {world.tag} FOR EACH ROW "
              f"INSERT INTO {log} VALUES (NEW.id)")  # fmt: skip
    with pytest.raises(ConfigurationError, match=r"without transactions") as refused:
        world.prepare(1)
    assert (world.seen(), len(refused.value.remedies)) == ([], 2)
    world.sql(f"DELETE FROM {log}")
    my.commit([world.prepare(1, 2, trial=False)])  # the second remedy
    assert (world.seen(), world.sql(f"SELECT count(*) FROM {log}")) == ([1, 2], [(2,)])
    world.sql(f"DELETE FROM {log}")
    world.sql(f"ALTER TABLE {log} ENGINE = InnoDB")  # the first one
    my.commit([world.prepare(3)])
    assert world.sql(f"SELECT id FROM {log}") == [(3,)]


def test_without_a_trial_a_row_that_the_table_refuses_asks_a_person(unique: World):
    my = unique.participant(trial=False)
    unique.sql(f"INSERT INTO {unique.tag} VALUES (2, 'there')")
    work = unique.prepare(1, 2, trial=False)
    with pytest.raises(DecisionNeededError, match="unique key 'id'"):
        my.commit([work])


def test_a_packet_that_was_made_smaller_after_the_decision_is_named(world: World):
    my, writer = world.participant(), world.sink.opened(0, 0)
    writer.write(pa.RecordBatch.from_pydict({"id": [1], "name": ["x" * 40_000]}))
    work = writer.prepare("0" * 32)
    assert work is not None
    root = as_root(world.server)
    my.close()
    root("SET GLOBAL max_allowed_packet = 16384")
    try:
        with pytest.raises(ConfigurationError, match=r"max_allowed_packet is 16384 by now"):
            my.commit([work])
    finally:
        root("SET GLOBAL max_allowed_packet = 16777216")
    my.close()
    assert my.commit([work]) == became([work], Outcome.COMMITTED)
    assert world.seen() == [1]


def test_a_user_who_may_not_make_our_tables_is_told_the_statements_and_needs_no_more():
    with mysql_server() as server:
        world, root = World(server), as_root(server)
        root("CREATE USER etl@'%' IDENTIFIED BY 'x'")
        root("GRANT SELECT, INSERT, UPDATE, DELETE, TRIGGER ON eos.* TO etl@'%'")
        url = f"mysql://etl:x@127.0.0.1:{server.port}/eos"
        with pytest.raises(ConfigurationError, match=r"by DDL.*run this once") as refused:
            world.participant(url=url)
        text = str(refused.value)
        for statement in text[text.index("CREATE TABLE") : text.index("GRANT SELECT")].split(";"):
            if statement.strip():
                world.sql(statement)
        my = world.participant(url=url)
        my.commit([world.prepare(1, url=url)])
        assert world.seen() == [1]
        my.close()


def test_rows_of_many_statements_are_committed_in_one_transaction(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("airflow_eos.kinds.mysql.sink._STATEMENT_BYTES", 1000)
    my, writer = world.participant(), world.sink.opened(0, 0)
    writer.write(rows(*range(500)))
    writer.write(rows(*range(500, 900)))
    work = writer.prepare("0" * 32)
    assert work is not None
    world.sql(f"ALTER TABLE {world.tag} ADD CHECK (id < 899)")
    with pytest.raises(DecisionNeededError):
        my.commit([work])
    assert world.seen() == []
