"""Rows that wait in the checkpoint, and other people's tools at the same server."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec
import psycopg
import pyarrow as pa
import pytest

from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.errors import ConfigurationError, StoreError
from tests.integration.kept.keeping import decided
from tests.integration.postgres.conftest import World, rows
from tests.integration.postgres.proxy import LosingProxy
from tests.integration.sql.keeping import *  # noqa: F403 - the tests of every database
from tests.integration.sql.verbs import became
from tests.support.pipelines import owner_at
from tests.support.servers.postgres import EmbeddedPostgres

LOGICAL = {"wal_level": "logical", "wal_retrieve_retry_interval": "100ms"}
NO_DDL = (
    (
        "CREATE FUNCTION no_ddl() RETURNS event_trigger LANGUAGE plpgsql AS "
        "'BEGIN RAISE EXCEPTION ''only by migrations: %'', tg_tag USING ERRCODE = ''22023''; END'"
    ),
    "CREATE EVENT TRIGGER no_ddl ON ddl_command_start EXECUTE FUNCTION no_ddl()",
)


@pytest.fixture
def publishing() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(settings=LOGICAL) as server:
        yield server


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end, "the subscriber stands still"
        time.sleep(0.05)


def ours_by_hand(refused: ConfigurationError) -> str:
    """The statements of an error, as a person copies them."""
    text = str(refused)
    return text[text.index("CREATE SCHEMA IF") : text.index("GRANT USAGE")]


@pytest.mark.parametrize("two_phase", [True, False], ids=["two-phase", "kept"])
def test_a_subscriber_to_all_tables_gets_the_rows_and_nothing_that_it_lacks(
    publishing: EmbeddedPostgres, two_phase: bool
):
    """It stood still for ever, on a table that had come and gone."""
    world = World(publishing, two_phase, columns="id bigint PRIMARY KEY, name text")
    with psycopg.connect(publishing.dsn, autocommit=True) as made:
        made.execute("CREATE DATABASE subscriber")
        made.execute("CREATE PUBLICATION everything FOR ALL TABLES")
        made.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
    with psycopg.connect(publishing.dsn_of("subscriber"), autocommit=True) as reader:
        reader.execute(f"CREATE TABLE {world.tag} (id bigint PRIMARY KEY, name text)")
        with pytest.raises(ConfigurationError, match=r"'everything' would have ours") as refused:
            world.participant()
        reader.execute(ours_by_hand(refused.value))  # at each subscriber first, as it says
        world.sql(ours_by_hand(refused.value))
        reader.execute(
            f"CREATE SUBSCRIPTION s CONNECTION '{publishing.dsn}' PUBLICATION everything "
            "WITH (create_slot = false, slot_name = 's', copy_data = false)"
        )
        pg = world.participant()
        pg.claim(owner_at("/a"))
        works = [world.prepare(1, 2), world.prepare(3, task=1), world.prepare(4, task=2)]
        pg.note(decided(1, works=tuple(works[:2])), owner_at("/a"))
        pg.commit(works[:2])
        pg.abort([works[2].identity])
        seen = f"SELECT id FROM {world.tag} ORDER BY id"
        until(lambda: reader.execute(seen).fetchall() == [(1,), (2,), (3,)])
        world.sql(f"INSERT INTO {world.tag} VALUES (9, 'of another program')")
        until(lambda: reader.execute(seen).fetchall()[-1] == (9,))
        reader.execute("ALTER SUBSCRIPTION s DISABLE")
        reader.execute("ALTER SUBSCRIPTION s SET (slot_name = NONE)")
        reader.execute("DROP SUBSCRIPTION s")
        pg.close()


def test_our_tables_join_no_publication_of_their_schema_either(publishing: EmbeddedPostgres):
    world = World(publishing, two_phase=False, columns="id bigint PRIMARY KEY, name text")
    world.sql("CREATE SCHEMA IF NOT EXISTS airflow_eos")
    world.sql("CREATE PUBLICATION of_a_schema FOR TABLES IN SCHEMA airflow_eos")
    with pytest.raises(ConfigurationError, match=r"'of_a_schema' would have ours"):
        world.participant()
    world.sql("DROP PUBLICATION of_a_schema; CREATE PUBLICATION p FOR TABLES IN SCHEMA public")
    world.participant().close()


def test_where_ddl_is_forbidden_a_pipeline_runs_and_a_first_start_says_what_to_make():
    """It was told as a bad row, and after the decision as a missing key."""
    with EmbeddedPostgres() as server:
        world = World(server, two_phase=False, columns="id bigint UNIQUE, name text")
        for statement in NO_DDL:
            world.sql(statement)
        with pytest.raises(
            ConfigurationError, match=r"by DDL.*no later step.*run this once"
        ) as refused:
            world.participant()
        assert "only by migrations" in str(refused.value)
        world.sql("ALTER EVENT TRIGGER no_ddl DISABLE")
        world.sql(ours_by_hand(refused.value))
        world.sql("ALTER EVENT TRIGGER no_ddl ENABLE")
        pg, works = world.participant(), [world.prepare(1), world.prepare(2, task=1)]
        pg.abort([works[1].identity])
        assert pg.commit(works[:1]) == became(works[:1], Outcome.COMMITTED)
        assert world.seen() == [1]
        pg.close()


def test_a_dump_is_whole_while_a_stream_delivers(keeping: World):
    pg, ended = keeping.participant(), threading.Event()
    url = keeping.server.dsn.replace("dbname=postgres", "")
    keeping.sql(f"CREATE TABLE {keeping.tag}_aaa AS SELECT repeat('x', 1000) FROM "
                "generate_series(1, 20000)")  # fmt: skip

    def deliver() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            pg.commit([keeping.prepare(number)])

    stream = threading.Thread(target=deliver)
    stream.start()
    try:
        for _ in range(3):
            dump = subprocess.run(
                [_pg_dump(), "--dbname", f"{url} dbname=postgres", "-t", f"{keeping.tag}*",
                 "-n", "airflow_eos", "-f", "/dev/null"],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert dump.returncode == 0, dump.stderr
    finally:
        ended.set()
        stream.join()
    assert keeping.tables() != []
    assert keeping.holdings() == []


def _pg_dump() -> str:
    found = shutil.which("pg_dump", path="/usr/lib/postgresql/15/bin:/usr/bin")
    return found or pytest.skip("pg_dump is not installed")


def test_a_server_left_behind_takes_none_of_what_waits(keeping: World):
    """Committed there, it would be removed from the checkpoint, and the primary never have it."""
    pg, work = keeping.participant(), keeping.prepare()
    work = msgspec.structs.replace(work, detail=work.detail | {"timeline": 9})
    for asked in (pg.outcome, pg.commit):
        with pytest.raises(StoreError, match="left behind by a failover"):
            asked([work])
    assert (keeping.seen(), len(keeping.kept())) == ([], 1)


DEFAULTS = """
id bigint, name text,
a text DEFAULT '', b text DEFAULT NULL, c text DEFAULT E'two\\nlines, "quoted"',
d interval DEFAULT interval '1 mon -2 days', e float8 DEFAULT 0.1::float8 + 0.2::float8,
f bytea DEFAULT '\\x00ff', g uuid DEFAULT gen_random_uuid(), h date DEFAULT '2026-11-03',
i int GENERATED ALWAYS AS (id * 2) STORED, j numeric(10, 2)[] DEFAULT '{1.10,NULL}'
"""


def test_a_default_of_any_type_is_made_once_and_stays_the_same(server: EmbeddedPostgres):
    """Also for a role with other settings of how values are written."""
    world = World(server, two_phase=False, columns=DEFAULTS)
    role = f"role_{world.tag}"
    pg = world.participant()
    for statement in (
        f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD 'x'",
        f"ALTER ROLE {role} SET datestyle = 'SQL, DMY'",
        f"ALTER ROLE {role} SET intervalstyle = 'sql_standard'",
        f"ALTER ROLE {role} SET extra_float_digits = -3",
    ):
        world.sql(statement)
    dsn = server.dsn.replace("user=postgres", f"user={role}")
    pg.commit([world.prepare(1, 2, dsn=dsn[: dsn.index("password=")] + "password=x")])
    same = "a = '', b IS NULL, c = E'two\\nlines, \"quoted\"', d = interval '1 mon -2 days'"
    same += ", e = 0.1::float8 + 0.2::float8, f = '\\x00ff', h = '2026-11-03', i = id * 2"
    same += ", j = '{1.10,NULL}'"
    assert world.sql(f"SELECT {same} FROM {world.tag}") == [(True,) * 9] * 2
    assert world.sql(f"SELECT count(DISTINCT g) FROM {world.tag}") == [(2,)]


def test_a_commit_that_was_cut_in_the_middle_of_the_rows_is_done_again(keeping: World):
    pg = keeping.participant()
    writer = keeping.sink.opened(0, 0)
    for at in range(0, 3000, 1000):
        writer.write(rows(*range(at, at + 1000)))
    work = writer.prepare("0" * 32)
    assert work is not None
    pg.close()
    with LosingProxy(keeping.server.port) as proxy:
        pg = keeping.participant(dsn=keeping.server.dsn_of("postgres", port=proxy.port))
        proxy.lose(b"row 2500", after=False)
        assert pg.commit([work]) == became([work], Outcome.COMMITTED)
        assert proxy.lost == 1
        pg.close()
    assert keeping.seen() == list(range(3000))


def test_a_table_whose_name_and_columns_need_quotes_is_delivered_to(server: EmbeddedPostgres):
    world = World(server, two_phase=False)
    name = f'Odd "{uuid.uuid4().hex[:6]}" % é'
    quoted = '"' + name.replace('"', '""') + '"'
    world.sql(f'CREATE TABLE {quoted} ("a ""b"" %s" bigint, n serial)')
    pg = world.participant(table=quoted)
    task = replace(world.sink, table=quoted).opened(0, 0)
    task.write(pa.RecordBatch.from_pydict({'a "b" %s': [5]}))
    pg.commit([task.prepare("0" * 32)])
    assert world.sql(f"SELECT * FROM {quoted}") == [(5, 1)]
