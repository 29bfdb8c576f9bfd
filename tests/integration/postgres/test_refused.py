"""Before the first row: what cannot keep its promise is refused by name; secrets stay secret."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_eos.core.delivery.batch import require_decidable
from airflow_eos.core.participants import connect
from airflow_eos.errors import ConfigurationError, DeliveryError, LocalEnvironmentError, StoreError
from airflow_eos.kinds.postgres.session import checked_dsn
from airflow_eos.kinds.postgres.sink import PostgresSink, require_slots
from tests.integration.postgres.conftest import World, rows
from tests.support.servers import postgres as local
from tests.support.servers.postgres import EmbeddedPostgres

PARTS = (
    "CREATE TABLE {0} (id bigint, name text) PARTITION BY RANGE (id);"
    "CREATE UNLOGGED TABLE {0}_p PARTITION OF {0} FOR VALUES FROM (0) TO (9)"
)
SECOND = timedelta(seconds=1)


@pytest.fixture
def without_slots() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(max_prepared_transactions=0) as server:
        yield server


@pytest.mark.long
def test_a_server_without_prepared_transactions_is_refused_and_staged_rows_are_not(without_slots):
    world = World(without_slots)
    with pytest.raises(
        ConfigurationError, match=r"Set max_prepared_transactions = 2 or more in postgresql.conf"
    ):
        world.participant()
    pg = world.participant(two_phase=False)
    with pytest.raises(ConfigurationError, match=r"max_prepared_transactions in postgresql.conf"):
        world.prepare()
    work = world.prepare(two_phase=False)
    pg.commit([work])
    assert world.seen() == [1, 2, 3]


def test_fewer_slots_than_twice_the_tasks_are_refused(two_phase: World):
    for each in range(3):
        two_phase.prepare(each, task=each, gid_prefix="somebody-else")
    with pytest.raises(ConfigurationError, match=r"32, 3 are taken: 15 tasks.*= 33 or more"):
        two_phase.sink._ask("", lambda c: require_slots(c, two_phase.sink._tables.name, 15))
    two_phase.sink._ask("", lambda c: require_slots(c, two_phase.sink._tables.name, 14))
    with pytest.raises(ConfigurationError, match="15 tasks"):
        two_phase.participant(tasks=15)


def test_when_slots_run_out_the_task_says_which_line_to_change(two_phase: World):
    for each in range(32):
        two_phase.prepare(each, task=each)
    with pytest.raises(ConfigurationError, match=r"max_prepared_transactions in postgresql.conf"):
        two_phase.prepare(99)
    assert two_phase.seen() == []


@pytest.fixture
def german(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if shutil.which("localedef") is None:
        pytest.skip("no localedef here")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # the server is another user's
        name = "de_DE.UTF-8"
        subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", f"{folder}/{name}"], check=True)
        monkeypatch.setenv("LOCPATH", folder)
        yield name


def test_when_slots_run_out_the_language_of_the_server_is_no_matter(german: str):
    """Its words are those of lc_messages: in German it was an error that a restart heals."""
    settings = {"lc_messages": german}
    with EmbeddedPostgres(max_prepared_transactions=2, settings=settings) as server:
        world = World(server)
        world.participant()
        for each in range(2):
            world.prepare(each, task=each)
        with pytest.raises(
            ConfigurationError, match=r"max_prepared_transactions in postgresql.conf"
        ):
            world.prepare(99)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ("CREATE UNLOGGED TABLE {0} (id bigint, name text)", "is UNLOGGED"),
        ("CREATE VIEW {0} AS SELECT 1::bigint AS id, 'x' AS name", "is a view"),
        (PARTS, "_p is UNLOGGED"),
    ],
)
def test_a_table_that_can_lose_rows_is_refused(two_phase: World, made: str, why: str):
    table = f"{two_phase.tag}_other"
    for statement in made.format(table).split(";"):
        two_phase.sql(statement)
    with pytest.raises(ConfigurationError, match=why):
        two_phase.participant(table=table)


def test_a_table_that_begins_to_lose_rows_while_a_query_runs_is_refused_before_the_promise(
    world: World,
):
    """As where somebody fills it faster so: after a crash it is empty, and its witnesses stay."""
    pg = world.participant()
    world.sql(f"ALTER TABLE {world.tag} SET UNLOGGED")
    work = world.prepare()
    with pytest.raises(ConfigurationError, match="is UNLOGGED"):
        require_decidable(pg, [work])
    pg.abort([work.identity])
    world.sql(f"ALTER TABLE {world.tag} SET LOGGED")
    require_decidable(pg, [world.prepare()])


def test_a_partitioned_table_is_delivered_to(world: World):
    table = f"{world.tag}_parts"
    world.sql(f"CREATE TABLE {table} (id bigint, name text) PARTITION BY RANGE (id)")
    world.sql(f"CREATE TABLE {table}_p PARTITION OF {table} FOR VALUES FROM (0) TO (9)")
    pg, work = world.participant(table=table), world.prepare(table=table)
    pg.commit([work])
    assert world.sql(f"SELECT count(*) FROM {table}") == [(3,)]


def test_a_table_that_is_not_there_is_refused(two_phase: World):
    with pytest.raises(ConfigurationError, match=r"There is no table nowhere\.nothing in"):
        two_phase.participant(table="nowhere.nothing")


def test_a_role_without_rights_is_told_what_to_grant(two_phase: World):
    role = f"role_{two_phase.tag}"
    two_phase.participant()
    two_phase.sql(f"CREATE ROLE {role} LOGIN PASSWORD 'tell-nobody'")
    dsn = two_phase.server.dsn.replace("user=postgres", f"user={role}")
    dsn = dsn[: dsn.index("password=")] + "password=tell-nobody"
    grants = (
        ("INSERT on the table", f"GRANT INSERT ON {two_phase.tag} TO {role}"),
        ("schema", f"GRANT USAGE ON SCHEMA airflow_eos TO {role}"),
        (
            "tables",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA airflow_eos TO {role}",
        ),
    )
    for _, grant in grants:
        with pytest.raises(ConfigurationError, match=r"(?i)grant|right") as refused:
            two_phase.participant(dsn=dsn)
        assert "tell-nobody" not in str(refused.value)
        two_phase.sql(grant)
    pg = two_phase.participant(dsn=dsn)
    theirs = two_phase.prepare(9)
    with pytest.raises(ConfigurationError, match="only it, or a superuser, may end"):
        pg.commit([theirs])
    work = two_phase.prepare(1, dsn=dsn)
    pg.commit([work])
    assert two_phase.seen() == [1]
    kept = two_phase.prepare(2, dsn=dsn, two_phase=False)
    two_phase.participant(dsn=dsn, two_phase=False).commit([kept])
    assert two_phase.seen() == [1, 2], "and needs no right more"


def test_a_role_that_may_not_create_our_tables_is_told_the_statements(server):
    world = World(server)
    database, role = f"db_{world.tag}", f"role_{world.tag}"
    world.sql(f"CREATE DATABASE {database}")
    world.sql(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    dsn = server.dsn_of(database).replace("user=postgres", f"user={role}")
    dsn = dsn[: dsn.index("password=")] + "password=x"
    with pytest.raises(ConfigurationError, match=r"run this once:\s+CREATE SCHEMA"):
        PostgresSink(dsn, table="pg_class", gid_prefix="p").connect(SECOND)


def test_row_level_security_is_refused(two_phase: World):
    role = f"secured_{two_phase.tag}"
    two_phase.participant()
    two_phase.sql(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    two_phase.sql(f"GRANT INSERT ON {two_phase.tag} TO {role}")
    two_phase.sql(f"GRANT ALL ON SCHEMA airflow_eos TO {role}")
    two_phase.sql(f"GRANT ALL ON ALL TABLES IN SCHEMA airflow_eos TO {role}")
    two_phase.sql(f"ALTER TABLE {two_phase.tag} ENABLE ROW LEVEL SECURITY")
    dsn = two_phase.server.dsn.replace("user=postgres", f"user={role}")
    with pytest.raises(ConfigurationError, match="row-level security"):
        two_phase.participant(dsn=dsn[: dsn.index("password=")] + "password=x")


def test_two_tasks_that_write_one_unique_key_do_not_wait_for_ever(server):
    world = World(server, columns="id bigint PRIMARY KEY, name text")
    pg, first = world.participant(), world.prepare(1)
    with pytest.raises(StoreError, match="must not write one unique key"):
        world.prepare(1, task=1, lock_timeout=timedelta(seconds=0.2))
    pg.commit([first])
    with pytest.raises(DeliveryError, match="does not take a row"):
        world.prepare(1, task=1)
    assert world.seen() == [1]


def test_a_trigger_that_drops_rows_is_no_delivery(world: World):
    world.participant()
    world.sql(f"CREATE FUNCTION {world.tag}() RETURNS trigger LANGUAGE plpgsql AS "
              "'BEGIN RETURN NULL; END'")  # fmt: skip
    world.sql(f"CREATE TRIGGER t BEFORE INSERT ON {world.tag} FOR EACH ROW "
              f"EXECUTE FUNCTION {world.tag}()")  # fmt: skip
    if world.two_phase:  # staged rows meet the trigger when they are moved
        with pytest.raises(DeliveryError, match=r"3 rows were sent .* took 0"):
            world.prepare()


def test_a_null_that_the_table_refuses_is_found_by_the_task(server):
    for two_phase in (True, False):
        world = World(server, two_phase=two_phase, columns="id bigint, name text NOT NULL")
        world.participant()
        writer = world.sink.opened(0, 0)
        writer.write(rows(1).set_column(1, "name", pa.array([None], pa.string())))
        with pytest.raises(DeliveryError, match="not-null"):
            writer.prepare("0" * 32)
        writer.abort()


def test_a_string_that_no_text_can_hold_is_refused(two_phase: World):
    writer = two_phase.sink.opened(0, 0)
    writer.write(rows(1).set_column(1, "name", pa.array(["nul \0"])))
    with pytest.raises(DeliveryError, match="does not take a row"):
        writer.prepare("0" * 32)
    writer.abort()


def test_a_password_is_shown_nowhere(world: World):
    pg, work = world.participant(), world.prepare()
    password = world.server._password
    wrong = replace(world.sink, dsn=world.server.dsn.replace(password, "not-it"))
    with pytest.raises(ConfigurationError, match="authentication failed") as refused:
        wrong.connect(SECOND)
    with pytest.raises(ConfigurationError, match="cannot be read") as unreadable:
        checked_dsn(f"host=x password {password}")
    with pytest.raises(StoreError) as nobody:
        replace(world.sink, dsn=world.server.dsn_of("x", port=1), answer_within=SECOND / 2).connect(
            SECOND
        )
    for text in (world.sink, pg.members, work, refused.value, unreadable.value, nobody.value):
        assert password not in f"{text!r} {text}"
    assert "not-it" not in str(refused.value)
    assert unreadable.value.__cause__ is None


@pytest.mark.parametrize("dsn", [None, "", {}, {"nonsense": "x"}, 7, "postgresql://[x"])
def test_what_is_no_connection_is_refused(two_phase: World, dsn: object):
    with pytest.raises(ConfigurationError, match=r"cannot be read|give how to reach"):
        connect(two_phase.participant().members, {"postgres": dsn})


def test_where_the_server_is_not_installed_the_package_is_named(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(local, "_DEBIAN", tmp_path)
    monkeypatch.setattr(local, "TOLD", None)
    monkeypatch.setitem(os.environ, "PATH", str(tmp_path))
    with pytest.raises(LocalEnvironmentError, match="apt-get install postgresql"):
        EmbeddedPostgres().start()
