"""Upserts into a real PostgreSQL: the hazards of ``test_redis.py``, and those of a table."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import os
import signal
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.errors import (
    ConfigurationError,
    DeliveryError,
    EosError,
    OwnershipError,
    StoreError,
    exit_status,
)
from airflow_eos.kinds.postgres.session import meaning
from airflow_eos.kinds.upsert import target as idle
from airflow_eos.kinds.upsert.participant import UpsertParticipant, connect, made
from airflow_eos.kinds.upsert.postgres import PostgresTable, PostgresTarget, PostgresUpsert
from airflow_eos.kinds.upsert.target import RowSchema
from tests.integration.kept.keeping import keep
from tests.integration.kept.table import *  # noqa: F403 - the tests of every database
from tests.integration.kept.table import Again, claimed, prepare, seen
from tests.support.pipeline import wait_until
from tests.support.pipelines import owner_at, require_at
from tests.support.servers.postgres import EmbeddedPostgres

psycopg = pytest.importorskip("psycopg")

TOTALS = "CREATE TABLE totals (id text PRIMARY KEY, value bigint, gone boolean, eos_version text)"


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres() as server:
        yield server


@pytest.fixture
def base(server: EmbeddedPostgres) -> Iterator[Any]:
    with psycopg.connect(server.dsn, autocommit=True) as base:
        base.execute("DROP TABLE IF EXISTS totals, airflow_eos_upserts, t")
        base.execute(TOTALS)
        yield base


def opened(
    server: EmbeddedPostgres, store: CheckpointStore, name: str = "totals"
) -> UpsertParticipant:
    return made(store, name, PostgresUpsert(server.dsn, "totals").open(timeout_s=30))


@pytest.fixture
def again(server: EmbeddedPostgres, base: Any) -> Again:
    del base  # it is empty by then
    return partial(opened, server)


@pytest.fixture
def how(server: EmbeddedPostgres) -> str:
    return server.dsn


def test_every_type_comes_as_it_was(upsert, store, base):
    base.execute(
        'CREATE TABLE IF NOT EXISTS kinds (id bigint, "part %" text, a text, b bytea, c boolean, '
        "d numeric, e date, f timestamptz, g double precision, n text, eos_version text, "
        'PRIMARY KEY (id, "part %"))'
    )
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC)
    row = [7, "x", 'é,"\n\\N', b"\xff\x00", True, decimal.Decimal("1.50"), at.date(), at, 0.1, ""]
    names = ["id", "part %", "a", "b", "c", "d", "e", "f", "g", "n"]
    rows = pa.table([[value] for value in row], names=names)
    nothing = [8, "x", *([None] * 8)]
    rows = pa.concat_tables([rows, pa.table([[v] for v in nothing], schema=rows.schema)])
    target = claimed(PostgresUpsert(upsert._target._session._dsn, "public.kinds"))
    assert target.apply(rows, RowSchema(("id", "part %")), "c", "0") == 0
    found = base.execute("SELECT * FROM kinds ORDER BY id").fetchall()
    assert [list(each[:-1]) for each in found] == [row, nothing]
    target.close()


def test_a_server_that_crashes_in_the_middle_has_all_or_nothing_of_a_work(
    upsert, server, store, base
):
    upsert.commit([prepare(store, 0, a=1)])
    work = prepare(store, 1, a=2)
    server.stop(how=signal.SIGQUIT)
    with pytest.raises(DeliveryError, match=r"did not answer while asking which server.*harmless"):
        upsert.commit([work])
    server.start()
    assert upsert.outcome([work]) == {work.identity: Outcome.OPEN}
    assert upsert.commit([work]) == {work.identity: Outcome.COMMITTED}
    with psycopg.connect(server.dsn) as again:
        assert seen(again) == {"a": 2}


def test_recovery_reaches_it_by_its_name_and_a_dsn(upsert, store, server, base):
    work = prepare(store, 0, a=1)
    member = upsert.members[0]
    with pytest.raises(ConfigurationError, match=r"Which postgres holds 'public.totals'"):
        connect(member, None, store=store, timeout_s=30)
    reached = connect(member, server.dsn, store=store, timeout_s=30)
    assert reached.members == upsert.members
    assert reached.commit([work]) == {work.identity: Outcome.COMMITTED}
    assert seen(base) == {"a": 1}
    parts = psycopg.conninfo.conninfo_to_dict(server.dsn)
    assert connect(member, parts, store=store, timeout_s=30).members == upsert.members


OF_A_KEY = "CREATE TABLE t (id text PRIMARY KEY, eos_version text, value"
FITS = "CREATE TABLE t (id text PRIMARY KEY, value bigint, eos_version text)"
DROPS = (
    "CREATE OR REPLACE FUNCTION drops() RETURNS trigger LANGUAGE plpgsql AS "
    "'BEGIN RETURN NULL; END'"
)
DROPPING = DROPS + "; CREATE TRIGGER drops BEFORE {} ON t FOR EACH ROW EXECUTE FUNCTION drops()"
COLLATION = (
    "CREATE COLLATION IF NOT EXISTS blind "
    "(provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("CREATE TABLE t (id text PRIMARY KEY, value bigint)", "no column eos_version"),
        ("CREATE TABLE t (id text, value bigint, eos_version text)", "unique index of just id"),
        (f"{OF_A_KEY} bigint UNIQUE)", "another unique index"),
        (f"{FITS}; CREATE UNIQUE INDEX ON t (lower(id))", "another unique index"),
        (f"{FITS}; CREATE UNIQUE INDEX ON t (value) WHERE value > 0", "another unique index"),
        (f"{FITS}; ALTER TABLE t ADD UNIQUE (value) DEFERRABLE", "another unique index"),
        (f"{OF_A_KEY} int)", "value as integer, which does not hold every bigint"),
        (
            "CREATE TABLE t (id varchar(3) PRIMARY KEY, value bigint, eos_version text)",
            r"id as character varying\(3\)",
        ),
        (f"{OF_A_KEY} bigint NOT NULL)", "value NOT NULL"),
        (f"{OF_A_KEY} bigint CHECK (value>0))", "constraint t_value_check"),
        (f"{OF_A_KEY} bigint, x int NOT NULL)", "needs a value for x"),
        (f"{OF_A_KEY} bigint GENERATED ALWAYS AS (1) STORED)", "generates value"),
        (FITS.replace("TABLE", "UNLOGGED TABLE"), r"is UNLOGGED or temporary \(t\)"),
        (
            f"{FITS} PARTITION BY LIST (id); CREATE UNLOGGED TABLE part PARTITION OF t DEFAULT",
            r"is UNLOGGED or temporary \(part\)",
        ),
        (f"{FITS}; {DROPPING.format('INSERT')}", "has the trigger drops"),
        (f"{FITS}; {DROPPING.format('UPDATE')}", "has the trigger drops"),
        (f"{FITS}; CREATE RULE nothing AS ON INSERT TO t DO INSTEAD NOTHING", "the rule nothing"),
        (
            f"{COLLATION}; {FITS.replace('text PRIMARY', 'text COLLATE blind PRIMARY')}",
            "the key id in a nondeterministic collation",
        ),
        (
            "CREATE TABLE t (id text UNIQUE DEFERRABLE, value bigint, eos_version text)",
            "unique index of just id",
        ),
        (f"{FITS}; CREATE INDEX ON t ((10 / value))", "index t_expr_idx, of an expression"),
        (f"{FITS}; CREATE INDEX ON t (id) WHERE 10 / value > 1", "index t_id_idx, of .*some rows"),
        (f"{FITS}; CREATE INDEX ON t USING gin (to_tsvector('simple', id))", "by gin"),
        (
            f"{FITS}; ALTER TABLE t ADD w bigint GENERATED ALWAYS AS (10 / value) STORED",
            "generates w by an expression",
        ),
        (f"{FITS}; ALTER TABLE t ADD nr serial", "numbers its rows by nr"),
        (f"{OF_A_KEY} bigint, nr int GENERATED BY DEFAULT AS IDENTITY)", "numbers its rows by nr"),
        (
            f"{FITS} PARTITION BY LIST (id); CREATE TABLE part PARTITION OF t FOR VALUES IN ('a')",
            "table t without a DEFAULT partition",
        ),
        (
            (
                "CREATE TABLE t (id text UNIQUE, value bigint, eos_version text); DROP PUBLICATION "
                "IF EXISTS all_of_it; CREATE PUBLICATION all_of_it FOR TABLE t"
            ),
            "is published without a replica identity",  # an UPDATE of it is refused, no INSERT
        ),
        ("SELECT 1", "There is no table 't'"),
    ],
)
def test_a_table_that_could_refuse_a_decided_row_is_refused_before_the_first(
    server, base, table, said
):
    base.execute(table)
    with pytest.raises(ConfigurationError, match=said):
        PostgresUpsert(server.dsn, "t").refuse({"id": "string", "value": "bigint"}, ("id",), None)


def test_a_user_without_rights_is_refused_by_them(server, base):
    base.execute("DROP ROLE IF EXISTS poor")
    base.execute("CREATE ROLE poor LOGIN PASSWORD 'p'")
    base.execute("GRANT SELECT ON totals TO poor")
    dsn = f"host=127.0.0.1 port={server.port} dbname=postgres user=poor password=p"
    with pytest.raises(ConfigurationError, match=r"no right to INSERT; .*no right to UPDATE"):
        PostgresUpsert(dsn, "totals").refuse({"id": "string", "value": "bigint"}, ("id",), None)
    base.execute("DROP OWNED BY poor")


def test_one_table_has_one_owner_by_whatever_name_it_is_called(upsert, server, store, tmp_path):
    other = CheckpointStore.open(tmp_path / "other")
    target = PostgresUpsert(f"{server.dsn} options='-c search_path=public'", "public.totals")
    theirs = made(other, "totals", target.open(timeout_s=30))
    theirs.claim(owner_at(other.location))
    with pytest.raises(OwnershipError, match="belongs to the checkpoint"):
        require_at(theirs, other.location, None)


def test_an_index_that_could_refuse_no_row_that_the_key_takes_is_let_be(server, base):
    base.execute(
        f"{FITS}; CREATE UNIQUE INDEX ON t (id) WHERE value > 0; CREATE INDEX ON t (value);"
        "ALTER TABLE t ADD nr bigserial; CREATE INDEX ON t USING brin (value)"
    )
    PostgresUpsert(server.dsn, "t").refuse({"id": "string", "value": "bigint"}, ("id",), None)


@pytest.mark.parametrize("when", ["ALWAYS", "BY DEFAULT"])
def test_a_number_that_the_table_gives_each_row_needs_no_value_of_ours(server, base, when):
    """The same as a bigserial; it was refused, since its NOT NULL has no default beside it."""
    base.execute(f"{FITS}; ALTER TABLE t ADD nr bigint GENERATED {when} AS IDENTITY")
    target = PostgresUpsert(server.dsn, "t")
    target.refuse({"id": "string", "value": "bigint"}, ("id",), None)
    with pytest.raises(ConfigurationError, match="generates nr itself"):
        target.refuse({"id": "string", "value": "bigint", "nr": "bigint"}, ("id",), None)


def test_a_key_of_included_columns_is_none_before_the_first_row(server, base):
    """``ON CONFLICT`` knows it not, and the decided rows would wait for ever."""
    base.execute("CREATE TABLE t (id text, v text, eos_version text, UNIQUE (id) INCLUDE (v))")
    with pytest.raises(ConfigurationError, match="no primary key or unique index of just id, v"):
        PostgresUpsert(server.dsn, "t").refuse({"id": "string", "v": "string"}, ("id", "v"), None)


def test_numbers_that_sql_takes_for_one_key_are_one_row(server, base):
    """Two of them in one statement would be refused, once they are decided, and for ever."""
    base.execute("CREATE TABLE t (id double precision PRIMARY KEY, v text, eos_version text)")
    target = claimed(PostgresUpsert(server.dsn, "t"))
    other_nan = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_0001))[0]
    rows = pa.table({"id": [0.0, -0.0, math.nan, other_nan, 1.0], "v": ["a", "b", "c", "d", "e"]})
    assert target.apply(rows, RowSchema(("id",)), "c", "0") == 0
    assert base.execute("SELECT id::text, v FROM t ORDER BY id").fetchall() == [
        ("0", "b"),
        ("1", "e"),
        ("NaN", "d"),
    ]
    target.close()


def test_a_float_is_the_same_number_in_a_wider_column(server, base):
    base.execute("CREATE TABLE t (id int PRIMARY KEY, r real, d float8, eos_version text)")
    target = claimed(PostgresUpsert(server.dsn, "t"))
    tenth = pa.array([0.1], pa.float32())
    target.apply(pa.table({"id": [1], "r": tenth, "d": tenth}), RowSchema(("id",)), "c", "0")
    assert base.execute("SELECT d = 0.1::real::float8, r = 0.1::real FROM t").fetchall() == [
        (True, True)
    ]
    target.close()


@pytest.fixture
def windows(server: EmbeddedPostgres, base: Any) -> Iterator[str]:
    """A database that was made on Windows, where its encoding is the default."""
    base.execute("DROP DATABASE IF EXISTS windows")
    base.execute("CREATE DATABASE windows ENCODING 'WIN1252' LOCALE 'C' TEMPLATE template0")
    dsn = f"{server.dsn} dbname=windows"
    with psycopg.connect(dsn, autocommit=True, client_encoding="utf8") as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text, eos_version text)")
    yield dsn
    base.execute("DROP DATABASE windows WITH (FORCE)")


def test_a_text_comes_as_it_was_whatever_the_encoding_of_the_session_is(windows: str):
    """COPY reads what is sent as text of that one, and é would be two letters, in silence."""
    target = claimed(PostgresUpsert(windows, "t"))
    target.apply(pa.table({"id": [1], "v": ["é"]}), RowSchema(("id",)), "c", "0")
    target.close()
    with psycopg.connect(windows, client_encoding="utf8") as connection:
        assert connection.execute("SELECT v FROM t").fetchall() == [("é",)]


def test_a_database_that_lacks_characters_is_refused_before_a_row_that_has_one(windows: str):
    target = PostgresUpsert(windows, "t")
    with pytest.raises(ConfigurationError, match="encoding WIN1252, which does not hold every"):
        target.refuse({"id": "int", "v": "string"}, ("id",), None)
    target.refuse({"id": "int"}, ("id",), None)


def test_a_server_that_vanishes_is_noticed_within_the_time(server):
    """No packet says that it is gone: the kernel has to ask, or the driver waits for hours."""
    target = PostgresUpsert(server.dsn, "totals").open(timeout_s=9)
    target.check()
    with socket.socket(fileno=os.dup(target._session.connected.fileno())) as line:
        options = ("TCP_KEEPIDLE", "TCP_USER_TIMEOUT")
        found = [line.getsockopt(socket.IPPROTO_TCP, getattr(socket, each)) for each in options]
    assert found == [9, 9000]
    target.close()


def test_a_connection_that_was_closed_while_no_batch_came_is_opened_again(
    server, base, monkeypatch
):
    """As ``idle_session_timeout`` does: a night without rows is no failure to be counted."""
    monkeypatch.setattr(idle, "IDLE_S", 0.0)
    target = PostgresUpsert(server.dsn, "totals").open(timeout_s=30)
    target.check()
    target.ensure_instance_id()
    for _ in range(2):
        base.execute(
            "SELECT pg_terminate_backend(%s, 1000)", [target._session.connected.info.backend_pid]
        )
        assert target.count(0)
    target.close()


def test_a_table_that_fits_is_taken(server, base):
    base.execute(
        "CREATE TABLE t (id text PRIMARY KEY, value numeric(12,4), gone boolean NOT NULL, "
        "eos_version text, seen timestamptz NOT NULL DEFAULT now())"
    )
    columns = {"id": "string", "value": "decimal(10,2)", "gone": "boolean"}
    PostgresUpsert(server.dsn, "public.t").refuse(columns, ("id",), "gone")


def test_a_text_that_postgres_cannot_hold_is_refused_before_it_is_decided():
    rows = pa.RecordBatch.from_pydict({"id": ["a"], "value": ["x\0y"]})
    with pytest.raises(DeliveryError, match="column value holds the character NUL"):
        PostgresUpsert("dbname=d", "t").refuse_rows(rows, ("id",))


def test_bytes_that_are_no_text_are_refused_before_they_are_decided():
    """Spark makes a string of any bytes; COPY reads none of the work that has one."""
    offsets = pa.array([0, 2], pa.int32()).buffers()[1]
    value = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff\xfe")])
    rows = pa.RecordBatch.from_arrays([pa.array(["a"]), value], names=["id", "value"])
    with pytest.raises(DeliveryError, match=r"column value is not UTF-8"):
        PostgresUpsert("dbname=d", "t").refuse_rows(rows, ("id",))


TIMES = [
    ("date", pa.date32(), -719162, 2932896),
    ("timestamp", pa.timestamp("us"), -62135596800_000_000, 253402300800_000_000 - 1),
    (
        "timestamptz",
        pa.timestamp("us", "America/New_York"),
        -62135596800_000_000,
        253402300800_000_000 - 1,
    ),
]


@pytest.mark.parametrize(("column", "kind", "first", "last"), TIMES, ids=str)
def test_a_time_beyond_the_years_of_sql_is_refused_before_it_is_decided(
    upsert, server, base, column: str, kind: pa.DataType, first: int, last: int
):
    """And the first and the last one arrive as they are, in whatever zone the session is."""

    def times(*numbers: int) -> pa.RecordBatch:
        whole = pa.array(numbers, pa.int32() if column == "date" else pa.int64())
        return pa.RecordBatch.from_pydict({"id": list(map(str, numbers)), "at": whole.cast(kind)})

    for beyond in (first - 1, last + 1):
        with pytest.raises(DeliveryError, match="column at is before the year 1 or after 9999"):
            PostgresUpsert("dbname=d", "t").refuse_rows(times(first, beyond), ("id",))
    PostgresUpsert("dbname=d", "t").refuse_rows(times(first, last), ("id",))
    base.execute(f"CREATE TABLE t (id text PRIMARY KEY, at {column}, eos_version text)")
    target = claimed(PostgresUpsert(server.dsn, "t"))
    target.apply(pa.table(times(first, last)), RowSchema(("id",)), "c", "0")
    target.close()
    in_utc = "at AT TIME ZONE 'UTC'" if column == "timestamptz" else "at"
    assert base.execute(f"SELECT left(({in_utc})::text, 19) FROM t ORDER BY at").fetchall() == [
        (each if column == "date" else f"{each} {time}",)
        for each, time in (("0001-01-01", "00:00:00"), ("9999-12-31", "23:59:59"))
    ]


def test_a_key_too_long_for_an_index_is_refused_before_it_is_decided(base):
    """As PostgreSQL refuses what it cannot compress to a third of a page."""
    rows = pa.RecordBatch.from_pydict({"id": ["x" * 1500], "part": ["é" * 600], "v": ["x" * 9999]})
    with pytest.raises(DeliveryError, match=r"key \(id, part\).*longer than 2600 bytes"):
        PostgresUpsert("dbname=d", "t").refuse_rows(rows, ("id", "part"))
    PostgresUpsert("dbname=d", "t").refuse_rows(rows, ("id",))


def test_a_value_too_long_for_any_index_of_the_table_is_refused_before_it_is_decided(server, base):
    """'index row size exceeds btree maximum 2704' came after the decision, at every start again."""
    base.execute(f"{FITS}; ALTER TABLE t ADD v text; CREATE INDEX ON t (value, v)")
    told = PostgresUpsert(server.dsn, "t").with_limits()
    rows = pa.RecordBatch.from_pydict({"id": ["a"], "value": [1], "v": ["x" * 2601]})
    with pytest.raises(DeliveryError, match=r"key \(value, v\).*2600 bytes"):
        told.refuse_rows(rows, ("id",))
    told.refuse_rows(rows.set_column(2, "v", pa.array(["x" * 2600])), ("id",))


def test_a_new_epoch_is_above_all_that_stand_whatever_a_clock_says(server, base):
    """Our row was removed, and a clock that was ahead had made the epoch before: once, all that
    came later was taken for older, and left out in silence."""
    base.execute(FITS)
    ahead = f"{9_999_999_999_999:016d}"
    base.execute(f"INSERT INTO t VALUES ('a', 1, '{ahead}{0:029d}'), ('b', 1, 'no version')")
    target = PostgresUpsert(server.dsn, "t").open(timeout_s=30)
    target.check()
    target.ensure_instance_id()
    base.execute("DELETE FROM airflow_eos_upserts WHERE target = 'public.t'")
    target.ensure_instance_id()
    target.claim("/c", "c")
    owner = target.owner()
    assert owner is not None
    assert owner.epoch == int(ahead) + 1
    base.execute("DELETE FROM t; " + target.give_up)
    target.claim("/d", "d")
    assert (owner := target.owner()) is not None
    assert owner.epoch == int(ahead) + 2
    target.close()
    base.execute("DELETE FROM airflow_eos_upserts WHERE target = 'public.t'")


def test_a_sessions_limits_are_ours_and_not_its_roles(server, base, store):
    base.execute(f"{FITS}; DROP ROLE IF EXISTS app; CREATE ROLE app LOGIN SUPERUSER PASSWORD 'x'")
    base.execute(f"{DROPS.replace('RETURN NULL', 'PERFORM pg_sleep(0.3); RETURN NEW')}")
    for name, value in (
        ("statement_timeout", "200ms"),
        ("default_transaction_read_only", "on"),
        ("default_transaction_isolation", "serializable"),
        ("idle_in_transaction_session_timeout", "50ms"),
    ):
        base.execute(f"ALTER ROLE app SET {name} = '{value}'")
    target = claimed(PostgresUpsert(f"{server.dsn} user=app password=x", "t"))
    base.execute("CREATE TRIGGER slow BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION drops()")
    rows = pa.table({"id": ["a", "b"], "value": pa.array([1, 2], pa.int64())})
    target.apply(rows, RowSchema(("id",)), "c", "0" * 29)
    assert base.execute("SELECT count(*) FROM t").fetchall() == [(2,)]
    target.close()
    base.execute("DELETE FROM airflow_eos_upserts WHERE target = 'public.t'; DROP TABLE t")
    base.execute("DROP OWNED BY app; DROP ROLE app")


ABOUT = RowSchema(("id",))


@pytest.fixture
def spec(server: EmbeddedPostgres) -> PostgresUpsert:
    return PostgresUpsert(server.dsn, "totals")


@pytest.fixture
def target(spec: PostgresUpsert, upsert: UpsertParticipant) -> Iterator[PostgresTarget]:
    """A task's connection to the table ``totals``, which ``upsert`` owns."""
    target = spec.open(timeout_s=30)
    yield target
    target.close()


def test_a_row_too_wide_for_a_page_is_refused_before_it_is_decided(target, base):
    """Its length shows only once the server has made a tuple of it; and nothing is left of it."""
    names = [f"c{at}" for at in range(500)]
    base.execute(f"ALTER TABLE totals {', '.join(f'ADD {name} text' for name in names)}")
    target.tried(pa.table({"id": ["a"], **{name: ["short"] for name in names}}), ABOUT)
    with pytest.raises(DeliveryError, match=r"row is too big.*Nothing of its batch was written"):
        target.tried(
            pa.table({"id": ["b", "c"], **{name: ["short", "x" * 30] for name in names}}), ABOUT
        )
    assert list(base.execute("SELECT id FROM totals")) == []


@pytest.mark.parametrize("stands", [True, False], ids=["a row that stands", "a new row"])
def test_a_row_that_may_not_be_replaced_any_more_is_refused_before_it_is_decided(
    target, server, base, stands: bool
):
    """Also a new one: another task of the batch may have its key, and one of the two replaces."""
    rows = pa.table({"id": ["a"], "value": [2]})
    if stands:
        base.execute("INSERT INTO totals (id, value) VALUES ('a', 1)")
    base.execute("CREATE PUBLICATION filtered FOR TABLE totals WHERE (value > 0)")
    try:
        with pytest.raises(DeliveryError, match=r"cannot update table.*: Column.*WHERE expr"):
            target.tried(rows, ABOUT)
        with pytest.raises(ConfigurationError, match=r"refuses to replace a row.*WHERE expression"):
            PostgresUpsert(server.dsn, "totals").refuse(
                {"id": "string", "value": "bigint"}, ("id",), None
            )
    finally:
        base.execute("DROP PUBLICATION filtered")
    assert list(base.execute("SELECT value FROM totals")) == [(1,)] * stands


def test_a_column_that_was_made_shorter_is_no_text_cut_short(upsert, target, store, base):
    """A cast to varchar(3) cuts a text without a word."""
    base.execute("ALTER TABLE totals ADD v varchar(3)")
    rows = pa.table({"id": ["a"], "value": [1], "v": ["abcd"]})
    with pytest.raises(DeliveryError, match="value too long"):
        target.tried(rows, ABOUT)
    work = keep(
        store,
        rows.replace_schema_metadata(ABOUT.metadata()),
        kind="upsert",
        name="totals",
        batch=0,
    )
    with pytest.raises(DeliveryError, match="value too long"):
        upsert.commit([work])
    base.execute("ALTER TABLE totals ALTER v TYPE text")  # while the committer stays connected
    assert upsert.commit([work]) == {work.identity: Outcome.COMMITTED}
    assert list(base.execute("SELECT v FROM totals")) == [("abcd",)]


def test_a_deadlock_with_somebody_else_is_tried_again(target, server, base):
    base.execute("INSERT INTO totals (id) VALUES ('a'), ('b')")
    rows = pa.table({"id": ["b", "a"], "value": [2, 1]})
    with psycopg.connect(server.dsn) as other, ThreadPoolExecutor(1) as tasks:
        other.execute("SET deadlock_timeout = '1min'")  # so the task is the victim
        other.execute("UPDATE totals SET value = 0 WHERE id = 'b'")
        trial = tasks.submit(target.tried, rows, ABOUT)
        waits = "SELECT FROM pg_stat_activity WHERE wait_event = 'transactionid'"
        wait_until(lambda: bool(list(base.execute(waits))), what="the task waits", timeout=30)
        other.execute("UPDATE totals SET value = 0 WHERE id = 'a'")
        other.commit()
        assert trial.result(timeout=30) is None


@pytest.mark.usefixtures("base")
def test_a_hint_of_the_server_is_told_and_no_detail_which_holds_rows(server):
    raised = "DO $$ BEGIN RAISE 'no' USING HINT = 'Ask Ann.', DETAIL = 'hunter2'; END $$"
    session = PostgresTable(server.dsn, "totals", timeout_s=30)
    with pytest.raises(DeliveryError, match=r"no\. Ask Ann\.") as told:
        session.rows("asking", raised)
    session.close()
    assert "hunter2" not in str(told.value)
    with (
        pytest.raises(EosError, match=r"no \(P0001\)\. Ask Ann\.") as meant,
        psycopg.connect(server.dsn) as base,
        meaning("writing", "here"),
    ):
        base.execute(raised)
    assert "hunter2" not in str(meant.value)


def test_a_rule_that_forbids_ddl_stops_no_commit(upsert, store, base):
    base.execute(
        "CREATE FUNCTION no_ddl() RETURNS event_trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'DDL only by migrations'; END $$"
    )
    base.execute("CREATE EVENT TRIGGER no_ddl ON ddl_command_start EXECUTE FUNCTION no_ddl()")
    try:
        work = prepare(store, 0, a=1)
        assert upsert.commit([work]) == {work.identity: Outcome.COMMITTED}
    finally:
        base.execute("DROP EVENT TRIGGER no_ddl")
        base.execute("DROP FUNCTION no_ddl")
    assert seen(base) == {"a": 1}


def test_neither_the_password_nor_a_row_is_told_to_anybody(upsert, server, store, base):
    dsn = f"{server.dsn} "
    secret = dsn.split("password=")[1].strip()
    assert secret not in repr(PostgresUpsert(dsn, "totals"))
    with pytest.raises(DeliveryError) as refused:
        PostgresUpsert(dsn.replace(secret, "hunter2x"), "totals").open(timeout_s=5).check()
    assert "hunter2x" not in str(refused.value)
    with pytest.raises(ConfigurationError, match="cannot be read") as wrong:
        PostgresUpsert("host=x password=my hunter2", "totals").open(timeout_s=5).check()
    assert "hunter2" not in str(wrong.value)
    base.execute("ALTER TABLE totals ADD CHECK (value < 100)")
    with pytest.raises(DeliveryError, match="CheckViolation") as refused:
        upsert.commit([prepare(store, 0, private=777)])
    assert "777" not in str(refused.value)
    assert "private" not in str(refused.value)


def test_a_table_that_fits_is_taken_also_where_it_deletes_by_a_trigger_or_has_one_switched_off(
    server, base
):
    base.execute(f"{FITS}; {DROPS}")
    base.execute("CREATE TRIGGER gone AFTER DELETE ON t FOR EACH ROW EXECUTE FUNCTION drops()")
    base.execute("CREATE TRIGGER off BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION drops()")
    base.execute("ALTER TABLE t DISABLE TRIGGER off")
    PostgresUpsert(server.dsn, "t").refuse({"id": "string", "value": "bigint"}, ("id",), None)


def test_row_level_security_that_could_refuse_a_decided_row_is_refused_before_the_first(
    server, base
):
    base.execute(f"{FITS}; ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    base.execute("DROP ROLE IF EXISTS clerk")
    base.execute("CREATE ROLE clerk LOGIN PASSWORD 'clerk'")
    base.execute("GRANT SELECT, INSERT, UPDATE ON t TO clerk")
    columns = {"id": "string", "value": "bigint"}
    clerk = f"{server.dsn} user=clerk password=clerk"
    with pytest.raises(ConfigurationError, match="has row-level security"):
        PostgresUpsert(clerk, "t").refuse(columns, ("id",), None)
    PostgresUpsert(server.dsn, "t").refuse(columns, ("id",), None)  # a superuser passes by it
    base.execute("DROP OWNED BY clerk; DROP ROLE clerk")


def test_what_a_pooler_makes_of_a_session_loses_no_commit(store):
    """It gives each transaction another connection: what was set before is not set there."""
    lax = {"synchronous_commit": "off", "wal_writer_delay": "10s"}
    with EmbeddedPostgres(settings=lax) as server:
        with psycopg.connect(server.dsn, autocommit=True) as base:
            base.execute(TOTALS)
        target = PostgresUpsert(server.dsn, "totals").open(timeout_s=30)
        upsert = made(store, "totals", target)
        upsert.claim(owner_at(store.location))
        target._session.connected.execute("RESET ALL")
        upsert.commit([prepare(store, 0, a=1)])
        server.stop(how=signal.SIGQUIT)
        server.start()
        with psycopg.connect(server.dsn) as again:
            assert seen(again) == {"a": 1}
        target.close()
        assert target.tally() == 1
        target.close()


@pytest.mark.long
def test_a_standby_is_refused_until_the_failover_is_over(store):
    """A name may lead to the former primary for minutes: that is nothing for a person to mend."""
    with EmbeddedPostgres() as server:
        with psycopg.connect(server.dsn, autocommit=True) as base:
            base.execute(TOTALS)
        server.stop()
        (server.folder / "data" / "standby.signal").touch()
        server.start()
        with pytest.raises(StoreError, match="is a standby") as refused:
            opened(server, store).claim(owner_at(store.location))
        assert exit_status(refused.value) == 1, "a later start may find the primary"
        with psycopg.connect(server.dsn, autocommit=True) as base:
            base.execute("SELECT pg_promote(wait_seconds => 30)")
        opened(server, store).claim(owner_at(store.location))


def made_by_hand(refused: ConfigurationError) -> str:
    """The statement of an error, as a person copies it."""
    text = str(refused)
    return text[text.index("CREATE TABLE") : text.index("GRANT")]


@pytest.mark.parametrize("what", ["FOR ALL TABLES", "FOR TABLES IN SCHEMA public"])
def test_our_table_joins_no_publication_whose_subscribers_lack_it(server, store, base, what: str):
    """A subscriber that lacks it stands still, with all that it subscribes to."""
    base.execute(f"CREATE PUBLICATION everything {what}")
    try:
        with pytest.raises(ConfigurationError, match=r"'everything' would have ours") as refused:
            opened(server, store)
        with pytest.raises(ConfigurationError, match="would have ours"):
            PostgresUpsert(server.dsn, "totals").refuse(
                {"id": "string", "value": "bigint"}, ("id",), None
            )
        assert base.execute("SELECT to_regclass('airflow_eos_upserts')").fetchone() == (None,)
        base.execute(made_by_hand(refused.value))
        opened(server, store).close()
    finally:
        base.execute("DROP PUBLICATION everything")


def test_where_our_table_may_not_be_made_the_error_has_the_statement(server, store, base):
    base.execute(
        "CREATE FUNCTION no_ddl() RETURNS event_trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'DDL only by migrations'; END $$"
    )
    base.execute("CREATE EVENT TRIGGER no_ddl ON ddl_command_start EXECUTE FUNCTION no_ddl()")
    try:
        with pytest.raises(
            ConfigurationError, match=r"DDL only by migrations.*run this once"
        ) as refused:
            opened(server, store)
        base.execute("ALTER EVENT TRIGGER no_ddl DISABLE")
        base.execute(made_by_hand(refused.value))
        base.execute("ALTER EVENT TRIGGER no_ddl ENABLE")
        opened(server, store).close()
    finally:
        base.execute("DROP EVENT TRIGGER no_ddl")
        base.execute("DROP FUNCTION no_ddl")
