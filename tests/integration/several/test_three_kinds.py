"""Kafka, PostgreSQL and Delta behind one decision: three witnesses, and one truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import deltalake
import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_eos.local import EmbeddedKafka
from airflow_eos.local.postgres import EmbeddedPostgres
from airflow_eos.recovery import Action, Result, execute_recovery, plan_recovery
from tests.support.pipeline import KILLED, Pipeline

pytestmark = [pytest.mark.integration]

NAMES = {"orders", "postings", "lake"}


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres() as running:
        yield running


@pytest.fixture
def pipeline(
    kafka_broker: EmbeddedKafka, server: EmbeddedPostgres, tmp_path: Path
) -> Iterator[Pipeline]:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS postings")
        connection.execute("CREATE TABLE postings (posting text, side text, amount bigint)")
    columns = pa.schema([("key", pa.binary()), ("value", pa.binary())])
    deltalake.DeltaTable.create(str(tmp_path / "lake"), schema=columns)
    settings = {"dsn": server.dsn, "lake": str(tmp_path / "lake")}
    yield Pipeline(kafka_broker, tmp_path, settings=settings)
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        for (gid,) in connection.execute("SELECT gid FROM pg_prepared_xacts").fetchall():
            connection.execute(f"ROLLBACK PREPARED '{gid}'")


def seen(pipeline: Pipeline, server: EmbeddedPostgres) -> dict[str, Counter[str]]:
    """How often each system has each value."""
    with psycopg.connect(server.dsn) as connection:
        booked = connection.execute("SELECT posting FROM postings").fetchall()
    table = deltalake.DeltaTable(str(pipeline.folder / "lake")).to_pyarrow_table()
    return {
        "orders": Counter(value for _, value in pipeline.visible()),
        "postings": Counter(posting for (posting,) in booked),
        "lake": Counter(value.decode() for value in table["value"].to_pylist()),
    }


def fed(pipeline: Pipeline) -> dict[str, Counter[str]]:
    times = {"orders": 2, "postings": 2, "lake": 1}
    return {
        name: Counter({value: n for _, value in pipeline.expected}) for name, n in times.items()
    }


@pytest.mark.parametrize("place", ["prepared@2", "decided@2", "settled-some@2"])
def test_driver_killed(
    pipeline: Pipeline, server: EmbeddedPostgres, spark: SparkSession, place: str
) -> None:
    name, _, nth = place.partition("@")
    pipeline.feed(4000)
    pipeline.run(expect=KILLED, failpoints=f"{name}=kill@{nth}")
    pipeline.feed(500)
    pipeline.resume(spark)
    assert seen(pipeline, server) == fed(pipeline)


def test_a_recovery_without_the_app_ends_the_work_of_all_three(
    pipeline: Pipeline, server: EmbeddedPostgres
) -> None:
    pipeline.feed(2000)
    pipeline.run(expect=KILLED, failpoints="decided=kill@1")
    reach = {"postings": server.dsn}
    kafka = {"bootstrap.servers": pipeline.bootstrap}
    plan = plan_recovery(pipeline.checkpoint, kafka, reach=reach)
    assert {step.work.participant for step in plan.steps if step.work} == NAMES
    assert {step.action for step in plan.steps} == {Action.COMMIT}
    report = execute_recovery(plan, kafka, reach=reach, force=True)
    assert {each.result for each in report.results} == {Result.DONE}
    assert seen(pipeline, server) == fed(pipeline)
    assert plan_recovery(pipeline.checkpoint, kafka, reach=reach).steps == ()
