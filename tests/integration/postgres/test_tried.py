"""Tried before promised: what a table refuses of rows, it refuses of the task, in both forms.

Each was found after the decision, by the staged form, and then at every start again.
"""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import date
from typing import Any

import psycopg
import pytest

from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.errors import (
    NO_RETRY_HEALS,
    ConfigurationError,
    DecisionNeededError,
    StoreError,
)
from tests.integration.postgres.conftest import World, rows
from tests.integration.sql.verbs import (
    a_clock_decides_nothing,
    require_refused_before_the_decision,
)
from tests.support.pipelines import owner_at
from tests.support.servers.postgres import EmbeddedPostgres

OWNER = owner_at("/a")

LONG = random.Random(7).randbytes(4000).hex()  # which nothing compresses to less than 4000 bytes
LEXEMES = " ".join(f"{n * 2_654_435_761 % 2**48:012x}" for n in range(120_000))
RAISES = (
    "CREATE FUNCTION {0}_f() RETURNS trigger LANGUAGE plpgsql AS "
    "'BEGIN IF NEW.id > 1 THEN RAISE EXCEPTION ''too large''; END IF; RETURN NEW; END'"
)
PARENT = ("CREATE TABLE {0}_p (id bigint PRIMARY KEY)", "INSERT INTO {0}_p VALUES (1)")
HAZARDS: dict[str, tuple[list[str], Any, Any]] = {
    "index row size": (
        ["CREATE TABLE {0} (id bigint, v text)", "CREATE INDEX ON {0} (v)"], "short", LONG,
    ),
    "a generated tsvector that is too long": (
        [("CREATE TABLE {0} (id bigint, v text, tsv tsvector GENERATED ALWAYS AS "
         "(to_tsvector('simple', v)) STORED)")], "a b", LEXEMES,
    ),
    "a generated column that cannot be made": (
        ["CREATE TABLE {0} (id bigint, v int, w int GENERATED ALWAYS AS (100 / v) STORED)"], 1, 0,
    ),
    "an index on an expression": (
        ["CREATE TABLE {0} (id bigint, v text)", "CREATE INDEX ON {0} (((v::jsonb) ->> 'a'))"],
        '{"a": 1}', "no json",
    ),
    "an index on some rows": (
        ["CREATE TABLE {0} (id bigint, v int)", "CREATE INDEX ON {0} (id) WHERE 10 / v > 1"], 1, 0,
    ),
    "a partition that is not there": (
        ["CREATE TABLE {0} (id bigint, v date) PARTITION BY RANGE (v)",
         "CREATE TABLE {0}_1 PARTITION OF {0} FOR VALUES FROM ('2026-11-01') TO ('2026-12-01')"],
        date(2026, 11, 30), date(2026, 12, 1),
    ),
    "a check of one partition": (
        ["CREATE TABLE {0} (id bigint, v int) PARTITION BY RANGE (v)",
         "CREATE TABLE {0}_1 PARTITION OF {0} FOR VALUES FROM (0) TO (99)",
         "ALTER TABLE {0}_1 ADD CHECK (v < 9)"], 1, 10,
    ),
    "a sequence at its end": (
        ["CREATE TABLE {0} (nr smallserial PRIMARY KEY, id bigint, v int)",
         "SELECT setval('{0}_nr_seq', 32766)"], 1, 1,
    ),
    "an identity at its end": (
        [("CREATE TABLE {0} (nr int GENERATED ALWAYS AS IDENTITY (MINVALUE -1 MAXVALUE 1 START 1), "
         "id bigint, v int)")],
        1, 1,
    ),
    "a domain": (
        ["CREATE DOMAIN {0}_d AS int CHECK (VALUE < 5)", "CREATE TABLE {0} (id bigint, v {0}_d)"],
        1, 7,
    ),
    "an enum": (
        ["CREATE TYPE {0}_e AS ENUM ('a', 'b')", "CREATE TABLE {0} (id bigint, v {0}_e)"], "a", "c",
    ),
    "an exclusion": (
        ["CREATE TABLE {0} (id bigint, v int, EXCLUDE USING btree (v WITH =))"], 1, 1,
    ),
    "a deferred unique key": (
        ["CREATE TABLE {0} (id bigint, v int UNIQUE DEFERRABLE INITIALLY DEFERRED)"], 1, 1,
    ),
    "a foreign key": ([*PARENT, "CREATE TABLE {0} (id bigint, v int REFERENCES {0}_p)"], 1, 2),
    "a deferred foreign key": (
        [*PARENT, ("CREATE TABLE {0} (id bigint, v int REFERENCES {0}_p DEFERRABLE "
         "INITIALLY DEFERRED)")], 1, 2,
    ),
    "a trigger that raises": (
        ["CREATE TABLE {0} (id bigint, v int)", RAISES,
         "CREATE TRIGGER t BEFORE INSERT ON {0} FOR EACH ROW EXECUTE FUNCTION {0}_f()"], 1, 1,
    ),
    "a deferred trigger that raises": (
        ["CREATE TABLE {0} (id bigint, v int)", RAISES,
         ("CREATE CONSTRAINT TRIGGER t AFTER INSERT ON {0} DEFERRABLE INITIALLY DEFERRED "
         "FOR EACH ROW EXECUTE FUNCTION {0}_f()")], 1, 1,
    ),
    "a trigger that drops rows": (
        ["CREATE TABLE {0} (id bigint, v int)",
         ("CREATE FUNCTION {0}_f() RETURNS trigger LANGUAGE plpgsql AS "
         "'BEGIN IF NEW.id > 1 THEN RETURN NULL; END IF; RETURN NEW; END'"),
         "CREATE TRIGGER t BEFORE INSERT ON {0} FOR EACH ROW EXECUTE FUNCTION {0}_f()"], 1, 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("hazard", HAZARDS)
def test_what_the_table_refuses_is_refused_before_the_decision(world: World, hazard: str):
    require_refused_before_the_decision(world, *HAZARDS[hazard])


def test_what_was_tried_holds_no_lock_and_leaves_nothing_to_see(server: EmbeddedPostgres):
    world = World(server, two_phase=False, columns="id bigint UNIQUE, name text")
    pg, work = world.participant(), world.prepare(1, 2)
    assert world.seen() == []
    with psycopg.connect(server.dsn, autocommit=True) as other:
        other.execute("SET lock_timeout = '1s'")
        other.execute(f"ALTER TABLE {world.tag} ADD COLUMN more int")
    pg.commit([work])
    assert world.seen() == [1, 2]


@pytest.mark.parametrize("number", ["bigserial", "bigint GENERATED ALWAYS AS IDENTITY"])
def test_a_row_has_the_number_and_the_time_that_it_was_tried_with(
    server: EmbeddedPostgres, number: str
):
    """A sequence that has come to its end meanwhile refuses no decided row."""
    columns = f"n {number}, id bigint, name text, at timestamptz DEFAULT clock_timestamp()"
    world = World(server, two_phase=False, columns=columns)
    pg, works = world.participant(), [world.prepare(1, 2), world.prepare(3, task=1)]
    [[before]] = world.sql("SELECT clock_timestamp()")
    world.sql(f"ALTER SEQUENCE {world.tag}_n_seq MAXVALUE 3")
    pg.commit(works)
    assert world.sql(f"SELECT n, id FROM {world.tag} ORDER BY n") == [(1, 1), (2, 2), (3, 3)]
    assert world.sql(f"SELECT max(at) < '{before}' FROM {world.tag}") == [(True,)]


def test_a_role_that_may_not_take_the_numbers_is_told_what_to_grant(server: EmbeddedPostgres):
    world = World(
        server, two_phase=False, columns="n int GENERATED ALWAYS AS IDENTITY, id bigint, name text"
    )
    world.participant().close()
    role, dsn = role_of(world)
    with pytest.raises(ConfigurationError, match=rf"GRANT USAGE ON SEQUENCE \S*{world.tag}_n_seq"):
        world.participant(dsn=dsn)
    world.sql(f"GRANT USAGE ON SEQUENCE {world.tag}_n_seq TO {role}")
    pg = world.participant(dsn=dsn)
    pg.commit([world.prepare(7, dsn=dsn)])
    assert world.seen() == [7]


def role_of(world: World) -> tuple[str, str]:
    """One with all that the pipeline needs but for sequences."""
    role = f"role_{world.tag}"
    for statement in (
        f"CREATE ROLE {role} LOGIN PASSWORD 'x'",
        f"GRANT SELECT, INSERT ON {world.tag} TO {role}",
        f"GRANT ALL ON SCHEMA airflow_eos TO {role}",
        f"GRANT ALL ON ALL TABLES IN SCHEMA airflow_eos TO {role}",
    ):
        world.sql(statement)
    dsn = world.server.dsn.replace("user=postgres", f"user={role}")
    return role, dsn[: dsn.index("password=")] + "password=x"


def test_a_table_that_was_altered_after_the_trial_asks_a_person(server: EmbeddedPostgres):
    """What no trial can find stays a person's."""
    world = World(server, two_phase=False)
    pg, work = world.participant(), world.prepare(1)
    world.sql(f"ALTER TABLE {world.tag} ADD COLUMN v int GENERATED ALWAYS AS (1 / (id - 1)) STORED")
    with pytest.raises(DecisionNeededError, match="division by zero"):
        pg.commit([work])
    world.sql(f"ALTER TABLE {world.tag} DROP COLUMN v")
    assert pg.commit([work]) == {work.identity: Outcome.COMMITTED}


FORBIDDEN = {
    "notify": "PERFORM pg_notify(''eos'', NEW.id::text);",
    "temporary": "CREATE TEMP TABLE IF NOT EXISTS seen (id bigint); INSERT INTO seen VALUES (1);",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_what_no_prepared_transaction_may_do_is_refused_with_both_ways_on(world: World, what: str):
    world.sql(
        f"CREATE FUNCTION {world.tag}_f() RETURNS trigger LANGUAGE plpgsql AS "
        f"'BEGIN {FORBIDDEN[what]} RETURN NEW; END'"
    )
    world.sql(
        f"CREATE TRIGGER t AFTER INSERT ON {world.tag} FOR EACH ROW "
        f"EXECUTE FUNCTION {world.tag}_f()"
    )
    pg = world.participant()
    if world.two_phase:
        with pytest.raises(NO_RETRY_HEALS, match=r"two_phase=False.*the trigger") as refused:
            world.prepare(1)
        assert len(refused.value.remedies) == 2
        assert (pg.open(), world.seen()) == ((), [])
    else:
        pg.commit([world.prepare(1)])
        assert world.seen() == [1]


@pytest.mark.long
def test_a_notification_of_a_trial_is_never_heard(server: EmbeddedPostgres):
    world = World(server, two_phase=False)
    world.sql(
        f"CREATE FUNCTION {world.tag}_f() RETURNS trigger LANGUAGE plpgsql AS "
        f"'BEGIN PERFORM pg_notify(''{world.tag}'', NEW.id::text); RETURN NEW; END'"
    )
    world.sql(f"CREATE TRIGGER t AFTER INSERT ON {world.tag} FOR EACH ROW "
              f"EXECUTE FUNCTION {world.tag}_f()")  # fmt: skip
    pg = world.participant()
    with psycopg.connect(server.dsn, autocommit=True) as reader:
        reader.execute(f"LISTEN {world.tag}")
        works = [world.prepare(1), world.prepare(2)]
        pg.abort([works[1].identity])
        pg.commit(works[:1])
        assert [each.payload for each in reader.notifies(timeout=1)] == ["1"]


LIMITS = {
    "statement_timeout": "300ms",
    "transaction_timeout": "300ms",
    "idle_in_transaction_session_timeout": "100ms",
    "idle_session_timeout": "100ms",
    "default_transaction_read_only": "on",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "synchronous_commit": "off",
}
SLOW = (
    "CREATE FUNCTION {0}_f() RETURNS trigger LANGUAGE plpgsql AS "
    "'BEGIN PERFORM pg_sleep(0.25); RETURN NEW; END'"
)


def test_a_sessions_limits_are_ours_and_not_its_roles(world: World):
    """Of each task, of the driver and of a recovery; a slow trigger stands for a large batch."""
    world.sql(SLOW.format(world.tag))
    world.sql(f"CREATE TRIGGER t BEFORE INSERT ON {world.tag} FOR EACH ROW "
              f"EXECUTE FUNCTION {world.tag}_f()")  # fmt: skip
    role, dsn = role_of(world)
    for name, value in LIMITS.items():
        if world.sql(f"SELECT current_setting('{name}', true)") != [(None,)]:
            world.sql(f"ALTER ROLE {role} SET {name} = '{value}'")
    pg = world.participant(dsn=dsn)
    writer = replace(world.sink, dsn=dsn).opened(0, 0)
    writer.write(rows(1, 2))
    world.sql("SELECT pg_sleep(0.3)")  # the task waits for Spark
    work = writer.prepare("0" * 32)
    assert work is not None
    pg._session.run("idling", lambda _: world.sql("SELECT pg_sleep(0.3)"))
    assert pg.commit([work]) == {work.identity: Outcome.COMMITTED}
    assert world.seen() == [1, 2]


def test_what_is_cancelled_all_the_same_is_named_with_the_way_on(server: EmbeddedPostgres):
    world = World(server, two_phase=False)
    pg = world.participant()

    def slow(connection: Any) -> None:
        connection.execute("SET statement_timeout = '50ms'")  # as a pooler's other session has it
        connection.execute("SELECT pg_sleep(5)")

    with pytest.raises(StoreError, match=r"57014.*ALTER ROLE … SET statement_timeout = 0") as named:
        pg._session.run("being cancelled", slow)
    assert named.value.remedies[0].start


def test_a_servers_clock_that_is_put_back_makes_no_decided_work_unaskable(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    ours = "table_schema = 'airflow_eos' AND table_name IN ('names', 'works')"
    a_clock_decides_nothing(world, monkeypatch, ours)
