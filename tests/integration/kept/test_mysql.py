"""Upserts into a real MariaDB: the hazards of ``test_redis.py``, and those of its own."""

from __future__ import annotations

import datetime as dt
import decimal
import pickle
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.core.protocol.participant import Note
from airflow_eos.errors import ConfigurationError, DeliveryError
from airflow_eos.kinds.upsert import target as idle
from airflow_eos.kinds.upsert.mysql import MySqlTarget, MySqlUpsert
from airflow_eos.kinds.upsert.participant import UpsertParticipant, connect, made
from airflow_eos.kinds.upsert.sink import UpsertSink
from airflow_eos.kinds.upsert.target import RowSchema
from tests.integration.kept.table import *  # noqa: F403 - the tests of every database
from tests.integration.kept.table import Again, claimed, prepare, seen
from tests.support.mysql import EXACT_COLLATION, TOLD, as_root, mysql_server
from tests.support.pipelines import owner_at
from tests.support.servers.mariadb import EmbeddedMariaDb

pytest.importorskip("pymysql")

KEY = f"id varchar(40) COLLATE {EXACT_COLLATION} PRIMARY KEY"
PREFIX = f"id varchar(40) COLLATE {EXACT_COLLATION}, PRIMARY KEY (id(3))"  # of 'abcd' and 'abce'
OF_A_KEY = f"CREATE TABLE t ({KEY}, value bigint, eos_version text"
TOTALS = f"CREATE TABLE totals ({KEY}, value bigint, gone boolean, eos_version varchar(64))"


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedMariaDb]:
    with mysql_server() as server:
        yield server


class Base:
    def __init__(self, server: EmbeddedMariaDb) -> None:
        self.target = MySqlTarget(server.url, "totals", timeout_s=30)

    def execute(self, statement: str) -> list[Any]:
        with self.target.asking("testing") as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())


@pytest.fixture
def base(server: EmbeddedMariaDb) -> Iterator[Base]:
    base = Base(server)
    base.execute("DROP TABLE IF EXISTS totals, airflow_eos_upserts, t")
    base.execute(TOTALS)
    yield base
    base.target.close()


def opened(server: EmbeddedMariaDb, store: CheckpointStore) -> UpsertParticipant:
    return made(store, "totals", MySqlUpsert(server.url, "totals").open(timeout_s=30))


@pytest.fixture
def again(server: EmbeddedMariaDb, base: Base) -> Again:
    del base  # it is empty by then
    return partial(opened, server)


@pytest.fixture
def how(server: EmbeddedMariaDb) -> str:
    return server.url


def test_to_claim_what_is_its_own_waits_for_nobody_who_writes(server, upsert, again, store):
    """A standby claims while the other driver delivers; an update locks what it looks at."""
    with MySqlTarget(server.url, "totals", timeout_s=30).asking("writing") as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT 1 FROM airflow_eos_upserts LOCK IN SHARE MODE")
        follower = again(store)
        follower.claim(owner_at(store.location))
        follower.close()
        cursor.execute("ROLLBACK")


def test_every_type_comes_as_it_was(upsert, server, base):
    base.execute(
        f"CREATE TABLE t (id bigint, part varchar(9) COLLATE {EXACT_COLLATION}, a longtext, "
        "b blob, c boolean, d decimal(10,2), e date, f datetime(6), g double, n text, "
        "eos_version varchar(64), PRIMARY KEY (id, part))"
    )
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC)
    row = [7, "x", "é,'\"\n\\N%s\0", b"\xff\x00'", True, decimal.Decimal("1.50"), at.date(), at]
    row += [0.1, ""]
    rows = pa.table([[value] for value in row], names=["id", "part", *"abcdefgn"])
    nothing = [8, "x", *([None] * 8)]
    rows = pa.concat_tables([rows, pa.table([[v] for v in nothing], schema=rows.schema)])
    target = claimed(MySqlUpsert(server.url, "t"))
    target.apply(rows, RowSchema(("id", "part")), "c", "0")
    found = [list(each[:-1]) for each in base.execute("SELECT * FROM t ORDER BY id")]
    row[7] = at.replace(tzinfo=None)
    assert found == [row, nothing]
    target.close()


def test_a_server_that_is_killed_in_the_middle_has_all_or_nothing_of_a_work(
    upsert, server, store, base
):
    upsert.commit([prepare(store, 0, a=1)])
    work = prepare(store, 1, a=2)
    server.kill()
    with pytest.raises(DeliveryError, match=r"did not answer while asking which server.*harmless"):
        upsert.commit([work])
    server.start()
    assert upsert.outcome([work]) == {work.identity: Outcome.OPEN}
    assert upsert.commit([work]) == {work.identity: Outcome.COMMITTED}
    base.target.close()
    assert seen(base) == {"a": 2}


def test_a_connection_that_was_closed_while_no_batch_came_is_opened_again(
    upsert, base, monkeypatch
):
    """After eight hours, by the server's default: a quiet night is no failure to be counted."""
    monkeypatch.setattr(idle, "IDLE_S", 0.0)
    for number in (1, 2):
        base.execute(f"KILL {upsert._target._session.connected.thread_id()}")
        assert upsert.counted() == number


def test_recovery_reaches_it_by_its_name_and_a_url(upsert, store, server, base):
    work = prepare(store, 0, a=1)
    with pytest.raises(ConfigurationError, match=r"Which mysql holds 'totals'.*'mysql://"):
        connect(upsert.members[0], None, store=store, timeout_s=30)
    reached = connect(upsert.members[0], server.url, store=store, timeout_s=30)
    assert reached.members == upsert.members
    assert reached.commit([work]) == {work.identity: Outcome.COMMITTED}
    assert seen(base) == {"a": 1}
    url = urlsplit(server.url)
    parts = {"host": url.hostname, "port": url.port, "user": "eos", "password": url.password}
    parts["database"] = "eos"
    again = connect(upsert.members[0], parts, store=store, timeout_s=30)
    assert again.members == upsert.members
    with pytest.raises(ConfigurationError, match="MySQL is told charset"):
        connect(upsert.members[0], parts | {"charset": "x"}, store=store, timeout_s=30)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (f"CREATE TABLE t ({KEY}, value bigint)", "no column eos_version"),
        (f"CREATE TABLE t ({KEY}, value bigint, eos_version text) ENGINE MyISAM", "MyISAM's"),
        (f"CREATE TABLE t ({KEY}, value bigint UNIQUE, eos_version text)", "other keys than one"),
        (f"CREATE TABLE t ({PREFIX}, value bigint, eos_version text)", "just id, as a whole"),
        (
            "CREATE TABLE t (id varchar(9) PRIMARY KEY, value bigint, eos_version text)",
            "takes different texts for one",
        ),
        (
            "CREATE TABLE t (id char(9) COLLATE utf8mb4_bin PRIMARY KEY, eos_version text)",
            "takes different texts for one",
        ),
        (f"CREATE TABLE t ({KEY}, value int, eos_version text)", "value as int"),
        (f"CREATE TABLE t ({KEY}, value bigint NOT NULL, eos_version text)", "value NOT NULL"),
        (f"{OF_A_KEY}, x int NOT NULL)", "needs a value for x"),
        (f"{OF_A_KEY}, CONSTRAINT c CHECK (value<9))", "constraint c,"),
        (f"{OF_A_KEY}, w int AS (9/value) STORED)", "fills w itself"),
        (
            f"{OF_A_KEY}) PARTITION BY RANGE COLUMNS (id) (PARTITION p VALUES LESS THAN ('b'))",
            "partitioned by RANGE COLUMNS",
        ),
        ("SELECT 1", "There is no table 't'"),
    ],
)
def test_a_table_that_could_refuse_a_decided_row_is_refused_before_the_first(
    server, base, table, said
):
    base.execute(table)
    with pytest.raises(ConfigurationError, match=said):
        MySqlUpsert(server.url, "t").refuse({"id": "string", "value": "bigint"}, ("id",), None)


def test_a_server_that_loses_commits_in_a_power_cut_is_refused_by_name():
    with mysql_server("--innodb-flush-log-at-trx-commit=2") as lax:
        for asked in (
            lambda: MySqlUpsert(lax.url, "totals").refuse({"id": "string"}, ("id",), None),
            lambda: MySqlUpsert(lax.url, "totals").open(timeout_s=30).check(),
        ):
            with pytest.raises(ConfigurationError, match="innodb_flush_log_at_trx_commit = 2"):
                asked()


def test_a_user_without_rights_to_the_table_is_told_what_to_grant(server, base):
    columns = {"id": "string", "value": "bigint", "gone": "boolean"}
    reader = as_root(server)
    reader("DROP USER IF EXISTS reader@'%'")
    reader("CREATE USER reader@'%' IDENTIFIED BY 'reader'")
    reader("GRANT SELECT, INSERT ON eos.totals TO reader@'%'")
    url = urlsplit(server.url)
    their = f"mysql://reader:reader@{url.hostname}:{url.port}/eos"
    with pytest.raises(ConfigurationError, match="INSERT, UPDATE, TRIGGER ON totals"):
        MySqlUpsert(their, "totals").refuse(columns, ("id",), "gone")
    reader("GRANT UPDATE ON eos.totals TO reader@'%'")
    if TOLD:
        with pytest.raises(ConfigurationError, match=r"GRANT TRIGGER .* may not see them"):
            MySqlUpsert(their, "totals").refuse(columns, ("id",), "gone")
    for scope in ("eos.totals", "eos.*", "*.*"):
        reader(f"GRANT TRIGGER ON {scope} TO reader@'%'")
        MySqlUpsert(their, "totals").refuse(columns, ("id",), "gone")
        reader(f"REVOKE TRIGGER ON {scope} FROM reader@'%'")


def test_a_short_version_is_refused_before_the_first_row(server, base):
    base.execute(f"CREATE TABLE t ({KEY}, eos_version varchar(44))")
    with pytest.raises(ConfigurationError, match="which does not hold every version"):
        MySqlUpsert(server.url, "t").refuse({"id": "string"}, ("id",), None)


@pytest.mark.skipif(TOLD is None, reason="MariaDB has no indexes of expressions")
def test_an_index_of_an_expression_is_refused_before_the_first_row(server, base):
    base.execute(f"CREATE TABLE t ({KEY}, value text, eos_version text)")
    base.execute("CREATE INDEX a ON t ((CAST(json_extract(value, '$.a') AS CHAR(9))))")
    with pytest.raises(ConfigurationError, match="has the constraint a, which could refuse a row"):
        MySqlUpsert(server.url, "t").refuse({"id": "string", "value": "string"}, ("id",), None)


@pytest.mark.skipif(TOLD is not None, reason="MySQL is told so when its data is laid out")
def test_a_table_has_one_name_where_capitals_do_not_count():
    with mysql_server("--lower-case-table-names=1") as server:
        base = Base(server)
        base.execute(TOTALS)
        columns = {"id": "string", "value": "bigint"}
        MySqlUpsert(server.url, "totals").refuse(columns, ("id",), None)
        with pytest.raises(ConfigurationError, match="is called 'totals'"):
            MySqlUpsert(server.url, "Totals").refuse(columns, ("id",), None)
        base.target.close()


@pytest.mark.parametrize("event", ["INSERT", "UPDATE"])
def test_a_trigger_that_could_refuse_a_decided_row_is_refused_before_the_first(
    server, base, event: str
):
    base.execute(f"CREATE TRIGGER late BEFORE {event} ON totals FOR EACH ROW SET NEW.value = 1")
    with pytest.raises(ConfigurationError, match="has the trigger late"):
        MySqlUpsert(server.url, "totals").refuse({"id": "string", "value": "bigint"}, ("id",), None)


def test_a_new_epoch_is_above_all_that_stand_whatever_a_clock_says(server, base):
    """Our row was removed, and a clock that was ahead had made the epoch before: once, all that
    came later was taken for older, and left out in silence."""
    base.execute(f"CREATE TABLE t ({KEY}, value bigint, eos_version varchar(64))")
    ahead = f"{9_999_999_999_999:016d}"
    base.execute(f"INSERT INTO t VALUES ('a', 1, '{ahead}{0:029d}'), ('b', 1, 'no version')")
    target = MySqlUpsert(server.url, "t").open(timeout_s=30)
    target.check()
    for epoch in (1, 2):
        target.ensure_instance_id()
        base.execute("UPDATE airflow_eos_upserts SET owner_location = NULL WHERE target = 't'")
        target.claim("/c", "c")
        owner = target.owner()
        assert owner is not None
        assert owner.epoch == int(ahead) + epoch
    target.close()
    base.execute("DELETE FROM airflow_eos_upserts WHERE target = 't'")


def test_a_table_that_fits_is_taken(server, base):
    columns = {"id": "string", "value": "bigint", "gone": "boolean"}
    MySqlUpsert(server.url, "totals").refuse(columns, ("id",), "gone")


def test_a_number_that_mysql_cannot_hold_is_refused_before_it_is_decided():
    rows = pa.RecordBatch.from_pydict({"id": ["a", "b"], "value": [None, float("nan")]})
    with pytest.raises(DeliveryError, match="column value is NaN"):
        MySqlUpsert("mysql://h", "t").refuse_rows(rows, ("id",))


def test_a_batch_of_nothing_but_nulls_is_taken():
    nothing = (pa.float64(), pa.date32(), pa.timestamp("us", "UTC"), pa.string(), pa.binary())
    rows = {str(each): pa.array([None], each) for each in nothing}
    MySqlUpsert("mysql://h", "t").refuse_rows(
        pa.RecordBatch.from_pydict({"id": ["a"], **rows}), ("id",)
    )


DAY_10000, YEAR_10000 = 2932897, 253402300800_000_000
DAY_1000, YEAR_1000 = -354285, -30610224000_000_000
ENDS = [
    (pa.date32(), DAY_1000, DAY_10000 - 1),
    (pa.timestamp("us"), YEAR_1000, YEAR_10000 - 1),
    (pa.timestamp("us", "America/New_York"), YEAR_1000, YEAR_10000 - 1),
]


def times(kind: pa.DataType, *numbers: int) -> pa.RecordBatch:
    whole = pa.int32() if kind == pa.date32() else pa.int64()
    ids = [f"k{number}" for number in numbers]
    return pa.RecordBatch.from_pydict({"id": ids, "at": pa.array(numbers, whole).cast(kind)})


@pytest.mark.parametrize(("kind", "first", "last"), ENDS, ids=str)
def test_a_time_that_mysql_cannot_hold_is_refused_before_it_is_decided(
    kind: pa.DataType, first: int, last: int
):
    target = MySqlUpsert("mysql://h", "t")
    for beyond in (first - 1, last + 1):
        with pytest.raises(DeliveryError, match=r"column at is before the year 1000 or after 9999"):
            target.refuse_rows(times(kind, first, beyond), ("id",))
    target.refuse_rows(times(kind, first, last), ("id",))


@pytest.mark.parametrize(("kind", "first", "last"), ENDS, ids=str)
def test_the_first_and_the_last_time_arrive_as_they_are(
    upsert, server, base, kind: pa.DataType, first: int, last: int
):
    held = "date" if kind == pa.date32() else "datetime(6)"
    base.execute(f"CREATE TABLE t ({KEY}, at {held}, eos_version varchar(64))")
    target = claimed(MySqlUpsert(server.url, "t"))
    target.apply(pa.table(times(kind, first, last)), RowSchema(("id",)), "c", "0")
    target.close()
    assert [str(at)[:19] for (at,) in base.execute("SELECT at FROM t ORDER BY at")] == (
        ["1000-01-01", "9999-12-31"]
        if kind == pa.date32()
        else ["1000-01-01 00:00:00", "9999-12-31 23:59:59"]
    )


def no_text() -> pa.Array:
    """What Spark makes of bytes that are no UTF-8: it looks at none of them."""
    offsets = pa.array([0, 2], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff\xfe")])


def test_bytes_that_are_no_text_are_refused_before_they_are_decided():
    rows = pa.RecordBatch.from_arrays([pa.array(["a"]), no_text()], names=["id", "value"])
    with pytest.raises(DeliveryError, match=r"column value is not UTF-8.*binary"):
        MySqlUpsert("mysql://h", "t").refuse_rows(rows, ("id",))


LONGER = [
    ("id", "x" * 41, "40 characters"),
    ("value", "é" * 10, None),
    ("value", "é" * 11, "10 characters"),
    ("note", "é" * 127, None),
    ("note", "é" * 128, "255 bytes"),
    ("raw", b"x" * 9, "8 bytes"),
    ("much", "x" * 9_000_000, "a row of"),
]


@pytest.mark.parametrize(("column", "value", "said"), LONGER, ids=lambda each: str(each)[:12])
def test_a_value_longer_than_its_column_is_refused_before_it_is_decided(
    server, base, tmp_path, column: str, value: Any, said: str | None
):
    """The tasks know what the driver was told, and need not reach the database."""
    base.execute(
        f"CREATE TABLE t ({KEY}, value varchar(10), note tinytext, raw varbinary(8), "
        "much longtext, eos_version varchar(64))"
    )
    sink = UpsertSink(MySqlUpsert(server.url, "t"), ["id"]).bound(CheckpointStore.open(tmp_path))
    target = pickle.loads(pickle.dumps(sink)).target
    rows = pa.RecordBatch.from_pydict({"id": ["a"]} | {column: [value]})
    if said is None:
        target.refuse_rows(rows, ("id",))
        return
    with pytest.raises(DeliveryError, match=rf"longer than.*{said}"):
        target.refuse_rows(rows, ("id",))


@pytest.fixture
def spec(server: EmbeddedMariaDb) -> MySqlUpsert:
    return MySqlUpsert(server.url, "totals")


@pytest.fixture
def target(spec: MySqlUpsert, upsert: UpsertParticipant) -> Iterator[MySqlTarget]:
    """A task's connection to the table ``totals``, which ``upsert`` owns."""
    target = spec.open(timeout_s=30)
    yield target
    target.close()


def test_a_row_too_wide_for_a_page_is_refused_before_it_is_decided(target, base):
    names = [f"c{at}" for at in range(190)]
    base.execute("SET SESSION innodb_strict_mode = OFF")
    base.execute(f"ALTER TABLE totals {', '.join(f'ADD {name} varchar(60)' for name in names)}")
    about = RowSchema(("id",))
    target.tried(pa.table({"id": ["a"], **{name: ["short"] for name in names}}), about)
    with pytest.raises(DeliveryError, match=r"1118: Row size too large.*Nothing of its"):
        target.tried(pa.table({"id": ["b"], **{name: ["x" * 50] for name in names}}), about)
    assert base.execute("SELECT id FROM totals") == []


def test_a_new_row_that_may_not_be_replaced_is_refused_before_it_is_decided(target, base):
    """Another task of the batch may have its key, and one of the two replaces."""
    base.execute(
        "CREATE TRIGGER forbids BEFORE UPDATE ON totals FOR EACH ROW "
        "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'hunter2'"
    )
    with pytest.raises(DeliveryError, match="1644") as told:
        target.tried(pa.table({"id": ["a"], "value": [1]}), RowSchema(("id",)))
    assert "hunter2" not in str(told.value)
    assert base.execute("SELECT id FROM totals") == []


def test_neither_the_password_nor_a_row_is_told_to_anybody(upsert, server, store, base):
    wrong = server.url.replace("//eos:", "//eos:hunter2")
    assert "hunter2" not in repr(MySqlUpsert(wrong, "totals"))
    with pytest.raises(DeliveryError) as refused:
        MySqlUpsert(wrong, "totals").open(timeout_s=5).check()
    assert "hunter2" not in str(refused.value)
    with pytest.raises(ConfigurationError) as unread:
        MySqlUpsert("mysql://:hunter2@/", "totals").open(timeout_s=5)
    assert "hunter2" not in str(unread.value)
    base.execute("ALTER TABLE totals ADD CHECK (value < 100)")
    with pytest.raises(DeliveryError, match=r"OperationalError (4025|3819)") as refused:
        upsert.commit([prepare(store, 0, private=777)])
    assert "777" not in str(refused.value)


@pytest.mark.long
def test_what_is_counted_stays_where_a_commit_would_begin_the_next_transaction():
    """``completion_type``: a number that was rolled back would look like a target set back."""
    with mysql_server("--completion-type=1") as server:
        Base(server).execute(TOTALS)
        target = MySqlTarget(server.url, "totals", timeout_s=30)
        target.check()
        target.ensure_instance_id()
        target.claim("/c", "c")
        target.note(Note(0, 1, "n", "p"), "c")
        assert target.count(0) == 1
        target.close()
        assert target.tally() == 1
        target.close()


def test_a_user_who_may_not_create_needs_our_table_alone_and_is_told_its_statement(
    server, store, base
):
    root, url = as_root(server), urlsplit(server.url)
    root("DROP USER IF EXISTS poor@'%'")
    root("CREATE USER poor@'%' IDENTIFIED BY 'poor'")
    root("GRANT SELECT, INSERT, UPDATE, TRIGGER ON eos.* TO poor@'%'")
    their = MySqlUpsert(f"mysql://poor:poor@{url.hostname}:{url.port}/eos", "totals")
    with pytest.raises(ConfigurationError, match=r"run this once") as refused:
        made(store, "totals", their.open(timeout_s=30))
    statement = str(refused.value).partition("CREATE TABLE")[2].partition(";")[0]
    base.execute(f"CREATE TABLE{statement}")
    made(store, "totals", their.open(timeout_s=30)).close()


def test_rows_are_cut_into_statements_that_the_server_takes(server, store, base):
    root = as_root(server)
    root("SET GLOBAL max_allowed_packet = 65536")
    try:
        base.target.close()
        upsert = opened(server, store)
        upsert.claim(owner_at("/a"))
        work = prepare(store, 0, **{f"key-{at:030}": at for at in range(3000)})
        assert upsert.commit([work]) == {work.identity: Outcome.COMMITTED}
        assert len(seen(base)) == 3000
        upsert.close()
    finally:
        root("SET GLOBAL max_allowed_packet = 16777216")
        base.target.close()
