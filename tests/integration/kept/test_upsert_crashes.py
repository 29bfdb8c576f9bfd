"""The placed crashes of the Kafka sink, on running counts that go by key into Redis or PostgreSQL.

The driver dies (SIGKILL) at each step of a batch; after the next start each count is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import redis
from pyspark.sql import SparkSession

from airflow_eos.local import EmbeddedKafka
from airflow_eos.local.postgres import EmbeddedPostgres
from airflow_eos.local.redis import EmbeddedRedis
from airflow_eos.recovery import Action, execute_recovery, plan_recovery
from tests.integration.kept.app import sink_of
from tests.support import pipeline as support
from tests.support.pipeline import KILLED, Pipeline

pytestmark = [pytest.mark.integration]

Read = Callable[[], dict[str, int]]


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "APP", Path(__file__).parent / "app.py")
    monkeypatch.setattr("tests.support.app.FileSink", sink_of)


@pytest.fixture
def to_redis(
    kafka_broker: EmbeddedKafka, tmp_path: Path, patched: None
) -> Iterator[tuple[Pipeline, Read]]:
    def read() -> dict[str, int]:
        with redis.Redis.from_url(server.url, decode_responses=True) as client:
            rows = [client.hgetall(key) for key in client.scan_iter("counts*")]
        return {row["key"]: int(row["value"]) for row in rows}

    with EmbeddedRedis() as server:
        settings = {"folder": f"redis:{server.url}", "kind": "count"}
        yield Pipeline(kafka_broker, tmp_path, settings=settings), read


@pytest.fixture
def to_postgres(
    kafka_broker: EmbeddedKafka, tmp_path: Path, patched: None
) -> Iterator[tuple[Pipeline, Read]]:
    def read() -> dict[str, int]:
        with psycopg.connect(server.dsn) as base:
            rows = base.execute("SELECT key, value FROM counts").fetchall()
        return {bytes(key).decode(): int(value) for key, value in rows}

    with EmbeddedPostgres() as server:
        with psycopg.connect(server.dsn) as base:
            base.execute(
                "CREATE TABLE counts (key bytea PRIMARY KEY, value text, eos_version text)"
            )
        settings = {"folder": f"postgres:{server.dsn}", "kind": "count"}
        yield Pipeline(kafka_broker, tmp_path, settings=settings), read


def right(pipeline: Pipeline) -> dict[str, int]:
    return dict(Counter(key for key, _ in pipeline.expected))


@pytest.mark.parametrize("place", ["decided@2", "kept-applied@2"])
def test_driver_killed(to_redis: tuple[Pipeline, Read], spark: SparkSession, place: str) -> None:
    pipeline, read = to_redis
    name, _, nth = place.partition("@")
    pipeline.feed(5000)
    pipeline.run(expect=KILLED, failpoints=f"{name}=kill@{nth}")
    pipeline.feed(1000)
    pipeline.resume(spark)
    assert read() == right(pipeline)


def test_a_recovery_writes_what_was_decided_from_the_checkpoint_and_a_dsn_alone(
    to_postgres: tuple[Pipeline, Read], spark: SparkSession
) -> None:
    pipeline, read = to_postgres
    told = {"upsert": str(pipeline.settings["folder"]).partition(":")[2]}
    pipeline.feed(1500)  # a batch
    pipeline.run(expect=KILLED, failpoints="decided=kill@1")
    assert read() == {}
    plan = plan_recovery(pipeline.checkpoint, reach=told)
    assert {step.action for step in plan.steps} == {Action.COMMIT}
    execute_recovery(plan, reach=told, force=True)
    assert read() == right(pipeline)
    pipeline.feed(1500)
    pipeline.resume(spark)
    assert read() == right(pipeline)


def test_at_least_once_the_tasks_write(
    to_redis: tuple[Pipeline, Read], spark: SparkSession
) -> None:
    pipeline, read = to_redis
    pipeline.feed(3000)
    pipeline.resume(spark, guarantee="at_least_once")
    assert read() == right(pipeline)
