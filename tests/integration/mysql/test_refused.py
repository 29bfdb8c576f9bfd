"""Before the decision: what cannot keep its promise is refused; values stay the same."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from pymysql import MySQLError
from pyspark.sql.types import LongType, StringType, StructField, StructType
from structlog.testing import capture_logs

from airflow_eos.core.delivery.batch import require_decidable
from airflow_eos.errors import ConfigurationError, DeliveryError, StoreError
from airflow_eos.kinds.mysql.sink import MySqlColumn, MySqlSink, check_columns, statements
from tests.integration.mysql.conftest import World
from tests.integration.sql.unique import *  # noqa: F403 - the tests of every database
from tests.integration.sql.world import written
from tests.support.mysql import TOLD, mysql_server
from tests.support.servers.mariadb import EmbeddedMariaDb

UTC = dt.UTC
TEXTS = ["", "NULL", "\\N", "\\", "it's", "''", 'say "x"', "two\nlines\r\n", " é😀\t", "%s %%"]
TEXTS += ["\0"]
AT = dt.datetime(2026, 11, 1, 5, 30, 0, 1, tzinfo=UTC)
DOUBLES = [0.1, 1 / 3, 2.5, 1e22, 2.2250738585072014e-308, 1.7976931348623157e308]
EXACT = ["-1234567890.0123456789", "0.0000000001"]
VALUES: list[tuple[str, pa.DataType, list[Any]]] = [
    ("longtext", pa.string(), TEXTS),
    ("varchar(40)", pa.large_string(), TEXTS),
    ("boolean", pa.bool_(), [True, False]),
    ("smallint", pa.int16(), [-(2**15), 2**15 - 1]),
    ("int", pa.int32(), [-(2**31), 2**31 - 1]),
    ("bigint", pa.int64(), [-(2**63), 0, 2**63 - 1]),
    ("double", pa.float32(), [0.1, -0.0, 3.4e38, 1e-30]),
    ("double", pa.float64(), DOUBLES),
    ("decimal(38,10)", pa.decimal128(38, 10), list(map(decimal.Decimal, EXACT))),
    ("longblob", pa.binary(), [b"", b"\x00\xff\\x41'", bytes(range(256))]),
    ("date", pa.date32(), [dt.date(1000, 1, 1), dt.date(2026, 11, 22), dt.date(9999, 12, 31)]),
    ("datetime(6)", pa.timestamp("us", "America/New_York"), [AT]),
    ("timestamp(6) NULL", pa.timestamp("us", "UTC"), [AT]),
    ("datetime(6)", pa.timestamp("us"), [dt.datetime(1969, 12, 31, 23, 59, 59, 999999)]),  # noqa: DTZ001
]


@pytest.mark.parametrize(("column", "type_", "values"), VALUES, ids=lambda each: str(each)[:20])
def test_each_value_and_null_arrives_as_it_is(
    server: EmbeddedMariaDb, column: str, type_: pa.DataType, values: list[Any]
):
    """Also from the middle of a batch."""
    world = World(server, columns=f"n int, v {column}")
    given = [None, *values, None]
    numbers = pa.array(range(len(given)), pa.int32())
    batch = pa.RecordBatch.from_pydict(
        {"n": pa.concat_arrays([numbers, numbers]), "v": pa.array([*given, *given], type_)}
    )
    writer = world.sink.opened(0, 0, transactional=False)
    writer.write(batch.slice(len(given)))
    writer.prepare("0" * 32)
    found = [value for (value,) in world.sql(f"SELECT v FROM {world.tag} ORDER BY n")]
    expected = pa.array(given, type_).to_pylist()
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        expected = [each and each.astimezone(UTC).replace(tzinfo=None) for each in expected]
    assert found == expected


def test_rows_are_cut_into_statements_that_the_server_takes_and_none_is_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    batch = pa.RecordBatch.from_pydict({"id": range(1000), "name": ["x" * 90] * 1000})
    pieces = list(statements(batch.slice(1), b"V ", 1000))
    assert max(map(len, pieces)) <= 1000 < len(b"".join(pieces))
    assert b",".join(each[2:] for each in pieces).count(b"),(") == 998
    with pytest.raises(DeliveryError, match=r"A row is \d+ bytes.*max_allowed_packet leaves 50"):
        list(statements(batch, b"V ", 52))
    monkeypatch.setattr("airflow_eos.kinds.mysql.sink._STATEMENT_BYTES", 1000)
    writer = world.sink.opened(0, 0)
    writer.write(batch)
    work = writer.prepare("0" * 32)
    assert work is not None
    world.participant().commit([work])
    assert world.seen() == list(range(1000))


def test_a_key_of_several_columns_is_refused_and_told_as_well(server: EmbeddedMariaDb):
    world = World(server, columns="id bigint, name varchar(40), UNIQUE (id, name)")
    with capture_logs() as logs:
        world.participant().close()
    assert [entry["by"] for entry in logs if "by" in entry] == ["UNIQUE (id, name)"]
    world.sql(f"INSERT INTO {world.tag} VALUES (2, 'row 2'), (3, 'another')")
    world.prepare(1, 3)
    with pytest.raises(DeliveryError, match=r"unique key \(id, name\)"):
        world.prepare(1, 2)


def test_a_key_that_the_table_makes_itself_is_no_ones(server: EmbeddedMariaDb):
    world = World(
        server, columns="n bigint AUTO_INCREMENT PRIMARY KEY, id bigint UNIQUE, name text"
    )
    my = world.participant()
    for number in (1, 2):
        my.commit([world.prepare(number)])
    found = world.sql(f"SELECT n, id FROM {world.tag} ORDER BY n")
    assert [number for _, number in found] == [1, 2], "rising, and with gaps: a trial takes some"
    assert len({n for n, _ in found}) == 2


def test_a_table_that_may_refuse_decided_rows_is_told_at_the_start(unique: World, world: World):
    with capture_logs() as logs:
        unique.participant()
        world.participant()
    [told] = [entry for entry in logs if entry["event"] == "decided_rows_may_be_refused"]
    assert (told["table"], told["by"]) == (unique.tag, "UNIQUE (id)")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("varchar(3)", "four"),
        ("varchar(2)", "ab   "),
        ("varbinary(2)", b"ab\0"),
        ("tinytext", "x" + " " * 255),
        ("text NOT NULL", None),
        ("bigint CHECK (v > 0)", -1),
        ("timestamp(6) NULL", dt.datetime(2039, 1, 1, tzinfo=UTC)),
        ("datetime(6)", dt.datetime(999, 1, 1, tzinfo=UTC)),
        ("double", math.nan),
    ],
)
def test_a_value_that_the_table_refuses_is_found_by_the_task(
    server: EmbeddedMariaDb, column: str, value: Any
):
    world = World(server, columns=f"v {column}")
    my = world.participant()
    kind = pa.string() if value is None else None
    with pytest.raises(DeliveryError, match=r"(?i)nothing (was made visible|of its batch)"):
        written(world.sink, v=pa.array([value], kind))
    assert my.open() == ()


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ("CREATE TABLE {0} (id bigint, name text) ENGINE = MyISAM", "is MyISAM.*ENGINE = InnoDB"),
        ("CREATE VIEW {0} AS SELECT 1 AS id, 'x' AS name", "is VIEW.*Deliver to one of them"),
        ("SELECT 1", "There is no table"),
    ],
)
def test_a_table_that_cannot_keep_the_promise_is_refused(world: World, made: str, why: str):
    table = f"{world.tag}_other"
    world.sql(made.format(table))
    with pytest.raises(ConfigurationError, match=why):
        world.participant(table=table)


def test_a_table_of_another_engine_while_a_query_runs_is_refused_before_the_promise(world: World):
    """It takes the rows at once, and again where their witness did not come along."""
    my, work = world.participant(), world.prepare()
    require_decidable(my, [work])
    world.sql(f"ALTER TABLE {world.tag} ENGINE = MyISAM")
    with pytest.raises(ConfigurationError, match=r"is MyISAM.*ENGINE = InnoDB"):
        require_decidable(my, [work])


def test_a_table_that_keeps_its_history_is_delivered_to(world: World):
    """Refused, it was told to become InnoDB's, which it is."""
    try:
        world.sql(f"ALTER TABLE {world.tag} ADD PRIMARY KEY (id)")
        world.sql(f"ALTER TABLE {world.tag} ADD SYSTEM VERSIONING")
    except MySQLError:
        pytest.skip("MySQL has no system-versioned tables")
    my, work = world.participant(), world.prepare(1, 2)
    my.commit([work])
    assert world.seen() == [1, 2]
    with pytest.raises(DeliveryError, match="a row with the unique key"):
        world.prepare(2)


def test_a_text_is_measured_as_the_table_keeps_it(server: EmbeddedMariaDb):
    world = World(server, columns="v varchar(4) CHARACTER SET latin1, w varchar(4)")
    assert world.write(v=["éé  "], w=["é😀é "]) == [("éé  ", "é😀é ")]


def test_columns_that_would_change_a_value_are_refused_all_at_once():
    there = {
        "id": MySqlColumn("bigint(20)", True, False),
        "at": MySqlColumn("datetime", False, False),
        "price": MySqlColumn("decimal(10,1)", False, False),
        "made": MySqlColumn("int(11)", False, True),
        "size": MySqlColumn("enum('s','m')", False, False),
    }
    rows_ = {"at": "timestamp", "price": "decimal(10,2)", "made": "int", "what": "string"}
    rows_["size"] = "string"  # '1' would be its first label
    with pytest.raises(ConfigurationError) as refused:
        check_columns(rows_, there, "t")
    for said in ("'at' as datetime,", "'price' as decimal", "generates 'made'", "no column 'what'"):
        assert said in str(refused.value)
    assert "'size' as enum('s','m'), which does not hold every string" in str(refused.value)
    assert "needs 'id'" in str(refused.value)


def test_the_columns_of_the_rows_are_asked_of_the_table(world: World):
    schema = StructType([StructField("id", LongType()), StructField("name", StringType())])
    assert world.sink.columns(schema, "r.") == ["r.`id` AS `id`", "r.`name` AS `name`"]
    with pytest.raises(ConfigurationError, match="has no column 'x'"):
        world.sink.columns(StructType([StructField("x", LongType())]))


def test_a_user_without_rights_is_told_what_to_grant(world: World):
    url = world.server.url.replace("//eos:", "//nobody:")
    with pytest.raises(ConfigurationError, match="GRANT SELECT, INSERT") as refused:
        world.participant(url=url)
    assert world.server._password not in str(refused.value)


@pytest.mark.long
def test_a_server_that_loses_commits_in_a_power_cut_is_refused(world: World):
    with (
        mysql_server("--innodb-flush-log-at-trx-commit=2") as lax,
        pytest.raises(ConfigurationError, match="innodb_flush_log_at_trx_commit = 2"),
    ):
        world.participant(url=lax.url)


@pytest.mark.long
def test_a_replica_is_no_witness():
    with mysql_server("--read-only") as replica:
        sink = MySqlSink(replica.url, table="t", prefix="t")
        with pytest.raises(StoreError, match=r"is read-only.*Name the primary"):
            sink.connect(timedelta(seconds=1))


@pytest.mark.long
@pytest.mark.skipif(TOLD is not None, reason="MySQL has no Galera of its own")
def test_a_cluster_of_several_writers_is_no_witness():
    """Another node may apply a commit late: what is not there is not ABORTED."""
    with mysql_server("--wsrep-on=ON", "--binlog-format=ROW") as galera:
        sink = MySqlSink(galera.url, table="t", prefix="t")
        with pytest.raises(ConfigurationError, match=r"wsrep_on = ON \(Galera\)"):
            sink.connect(timedelta(seconds=1))


@pytest.mark.long
def test_a_password_is_shown_nowhere(world: World):
    my, work = world.participant(), world.prepare()
    password = world.server._password
    wrong = replace(world.sink, url=world.server.url.replace(password, "not-it"))
    with pytest.raises(ConfigurationError) as refused:
        wrong.connect(timedelta(seconds=1))
    with pytest.raises(ConfigurationError, match="cannot be read") as unreadable:
        replace(world.sink, url=f"mysql://:{password}@/")
    gone = world.server.url.replace(f":{world.server.port}/", ":1/")
    with pytest.raises(StoreError) as nobody:
        replace(world.sink, url=gone, answer_within=timedelta(seconds=0.5)).connect(
            timedelta(seconds=1)
        )
    for text in (world.sink, my.members, work, refused.value, unreadable.value, nobody.value):
        assert password not in f"{text!r} {text}"
    assert "not-it" not in str(refused.value)
