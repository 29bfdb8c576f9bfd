"""Tried before promised: what a table refuses of rows, it refuses of the task; limits are ours."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pymysql
import pytest

from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.errors import DeliveryError, StoreError
from airflow_eos.kinds.mysql.session import meaning
from airflow_eos.kinds.mysql.sink import MySqlSink
from tests.integration.kept.keeping import decided
from tests.integration.mysql.conftest import World
from tests.integration.sql.verbs import (
    a_clock_decides_nothing,
    require_refused_before_the_decision,
)
from tests.integration.sql.world import written
from tests.support.mysql import as_root, mysql_server
from tests.support.pipelines import owner_at

OWNER = owner_at("/a")

PARENT = ("CREATE TABLE {0}_p (id bigint PRIMARY KEY)", "INSERT INTO {0}_p VALUES (1)")
HAZARDS: dict[str, tuple[tuple[str, ...], Any, Any]] = {
    "a foreign key": (
        (*PARENT, "CREATE TABLE {0} (id bigint, v bigint, FOREIGN KEY (v) REFERENCES {0}_p (id))"),
        1,
        2,
    ),
    "a trigger that signals": (
        (
            "CREATE TABLE {0} (id bigint, v bigint)",
            (
                "CREATE TRIGGER {0}_t BEFORE INSERT ON {0} FOR EACH ROW BEGIN IF NEW.v > 1 THEN "
                "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'too large'; END IF; END"
            ),
        ),
        1,
        2,
    ),
    "a trigger that fails": (
        (
            "CREATE TABLE {0}_o (v tinyint)",
            "CREATE TABLE {0} (id bigint, v bigint)",
            "CREATE TRIGGER {0}_t AFTER INSERT ON {0} FOR EACH ROW INSERT {0}_o VALUES (NEW.v)",
        ),
        1,
        1000,
    ),
    "a key of a part of a text": (
        ("CREATE TABLE {0} (id bigint, v varchar(40), UNIQUE (v(3)))",),
        "abc1",
        "abc2",
    ),
    "a key with a column that the table fills": (
        ("CREATE TABLE {0} (id bigint, v bigint, w int DEFAULT 7, UNIQUE (v, w))",),
        1,
        1,
    ),
    "a key of a generated column": (
        ("CREATE TABLE {0} (id bigint, v bigint, w bigint AS (v * 2) STORED UNIQUE)",),
        1,
        1,
    ),
    "numbers at their end": (
        (
            "CREATE TABLE {0} (n tinyint AUTO_INCREMENT PRIMARY KEY, id bigint, v int)",
            "ALTER TABLE {0} AUTO_INCREMENT = 125",
        ),
        1,
        1,
    ),
    "a partition that is not there": (
        (
            (
                "CREATE TABLE {0} (id bigint, v bigint) PARTITION BY RANGE (v) "
                "(PARTITION p VALUES LESS THAN (10))"
            ),
        ),
        1,
        10,
    ),
    "an index that is too long": (
        ("CREATE TABLE {0} (id bigint, v text, w text AS (concat(v, v)) STORED, UNIQUE (w(10)))",),
        "0123456789",
        "0123456789",
    ),
}


@pytest.mark.parametrize("hazard", HAZARDS)
def test_what_the_table_refuses_is_refused_before_the_decision(world: World, hazard: str):
    require_refused_before_the_decision(world, *HAZARDS[hazard])


def test_a_trigger_that_the_user_may_not_see_is_tried_all_the_same(world: World):
    """MySQL lists none to who lacks TRIGGER."""
    table, root = f"{world.tag}_t", as_root(world.server)
    for statement in HAZARDS["a trigger that signals"][0]:
        world.sql(statement.format(table))
    root(f"CREATE USER {table}@'%' IDENTIFIED BY 'secret'")
    root(f"GRANT SELECT, INSERT, UPDATE, DELETE ON eos.* TO {table}@'%'")
    reached = urlsplit(world.server.url)
    url = f"mysql://{table}:secret@{reached.hostname}:{reached.port}/eos"
    sink = MySqlSink(url, table=table, prefix=table, store=world.store)
    my = sink.connect(timedelta(seconds=1))
    assert my.commit([work := written(sink, id=[1], v=[1])]) == {work.identity: Outcome.COMMITTED}
    with pytest.raises(DeliveryError, match=r"(?i)nothing was made visible"):
        written(sink, id=[2], v=[2])


def test_what_was_tried_holds_no_lock_and_leaves_nothing_to_see(world: World):
    table = f"{world.tag}_t"
    for statement in HAZARDS["a foreign key"][0]:
        world.sql(statement.format(table))
    sink = MySqlSink(world.server.url, table=table, prefix=table, store=world.store)
    my, work = sink.connect(timedelta(seconds=1)), written(sink, id=[1], v=[1])
    assert world.sql(f"SELECT count(*) FROM {table}") == [(0,)]
    world.sql(f"UPDATE {table}_p SET id = 1")
    world.sql(f"ALTER TABLE {table} ADD COLUMN more int")
    assert my.commit([work]) == {work.identity: Outcome.COMMITTED}


LIMITS = (
    "SET SESSION /*M! max_statement_time = 0.4, idle_transaction_timeout = 1, */ "
    "/*!80000 max_execution_time = 400, */ wait_timeout = 1, sql_select_limit = 1, "
    "foreign_key_checks = 0, unique_checks = 0, sql_safe_updates = 1, sql_big_selects = 0, "
    "max_join_size = 1, sql_mode = '', innodb_lock_wait_timeout = 1; "
    "SET SESSION TRANSACTION READ ONLY, ISOLATION LEVEL SERIALIZABLE"
)


def test_a_sessions_limits_are_ours_and_not_its_users():
    """Of each task, of the driver and of a recovery; a slow trigger stands for a large batch."""
    with mysql_server(f"--init-connect={LIMITS}") as server:
        world = World(server, columns="id bigint UNIQUE, name text")
        world.sql(
            f"CREATE TRIGGER {world.tag}_t BEFORE INSERT ON {world.tag} FOR EACH ROW "
            "SET NEW.name = concat(NEW.name, sleep(0.3))"
        )
        my = world.participant()
        writers = [world.sink.opened(each, 0) for each in range(2)]
        for number, writer in enumerate(writers):
            writer.write(
                pa.RecordBatch.from_pydict({"id": [2 * number, 2 * number + 1], "name": ["a", "b"]})
            )
        world.sql("SELECT sleep(1.5)")  # the tasks wait for Spark
        works = [work for writer in writers if (work := writer.prepare("0" * 32)) is not None]
        assert {each.key for each in my.open()} == {work.key for work in works}
        my.claim(OWNER)
        my.note(decided(1, works=tuple(works)), OWNER)
        assert set(my.commit(works).values()) == {Outcome.COMMITTED}
        assert world.seen() == [0, 1, 2, 3]
        with pytest.raises(DeliveryError, match="unique key"):
            world.prepare(3)


@pytest.mark.parametrize(
    ("number", "way"), [(1969, "proxy"), (3024, "proxy"), (1226, r"MAX_QUERIES_PER_HOUR 0")]
)
def test_what_is_cancelled_all_the_same_is_named_with_the_way_on(number: int, way: str):
    with pytest.raises(StoreError, match=way) as named, meaning("committing", "there"):
        raise pymysql.err.OperationalError(number, "its values")
    assert named.value.remedies[0].start


@pytest.mark.long
def test_a_servers_clock_makes_no_decided_work_unaskable(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    ours = "table_schema = database() AND table_name IN ('airflow_eos_names', 'airflow_eos_works')"
    a_clock_decides_nothing(world, monkeypatch, ours)
