"""The placed crashes of the Kafka sink, on PostgreSQL: the driver dies at each step of a batch.

The next start delivers each row once, and leaves nothing prepared.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from signal import SIGQUIT

import msgspec
import pytest
from pyspark.sql import SparkSession

from airflow_eos.errors import ConfigurationError
from airflow_eos.local import EmbeddedKafka
from airflow_eos.local.postgres import EmbeddedPostgres
from airflow_eos.recovery import Action, Result, execute_recovery, plan_recovery
from tests.integration.postgres import app as own_app
from tests.integration.postgres.conftest import World, end_all
from tests.support import app as shared_app
from tests.support import pipeline as shared_pipeline
from tests.support.pipeline import KILLED, Pipeline

pytestmark = [pytest.mark.integration]


@pytest.fixture
def world(server: EmbeddedPostgres, request: pytest.FixtureRequest):
    made = World(server, getattr(request, "param", True), columns="key bytea, value bytea")
    yield made
    end_all(made)


@pytest.fixture
def pipeline(
    kafka_broker: EmbeddedKafka, tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> Pipeline:
    monkeypatch.setattr(shared_pipeline, "APP", Path(own_app.__file__))
    monkeypatch.setattr(shared_app, "FileSink", own_app.sink_of)
    sink = {
        "dsn": world.server.dsn,
        "table": world.tag,
        "gid_prefix": world.tag,
        "two_phase": world.two_phase,
    }
    described = msgspec.json.encode(sink).decode()
    return Pipeline(kafka_broker, tmp_path, settings={"folder": described})


def visible(world: World) -> Counter[tuple[str, str]]:
    found = world.sql(f"SELECT key, value FROM {world.tag}")
    return Counter((key.decode(), value.decode()) for key, value in found)


def assert_exactly_once(pipeline: Pipeline, world: World) -> None:
    found, expected = visible(world), Counter(pipeline.expected)
    assert expected - found == Counter(), f"lost {(expected - found).total()} rows"
    assert found - expected == Counter(), f"duplicated {(found - expected).total()} rows"
    assert waiting(world) == 0


def waiting(world: World) -> int:
    ((prepared, staged),) = world.sql(
        f"SELECT (SELECT count(*) FROM pg_prepared_xacts WHERE gid LIKE '{world.tag}.%'), "
        f"(SELECT count(*) FROM airflow_eos.staged WHERE key LIKE '{world.tag}.%')"
    )
    return int(prepared) + int(staged)


@pytest.mark.parametrize(
    "place", ["sealed", "prepared@2", "decided@2", "settled-some@2", "settled@2"]
)
def test_driver_killed(pipeline: Pipeline, world: World, spark: SparkSession, place: str) -> None:
    name, _, nth = place.partition("@")
    pipeline.feed(6000)
    pipeline.run(expect=KILLED, failpoints=f"{name}=kill@{nth or 1}")
    pipeline.feed(1000)
    pipeline.resume(spark)
    assert_exactly_once(pipeline, world)


@pytest.mark.parametrize("world", [False], indirect=True, ids=["staged"])
@pytest.mark.parametrize("place", ["prepared@2", "settled-some@2"])
def test_driver_killed_with_staged_rows(
    pipeline: Pipeline, world: World, spark: SparkSession, place: str
) -> None:
    test_driver_killed(pipeline, world, spark, place)


@pytest.mark.parametrize("place", ["task-wrote", "task-prepared"])
def test_python_worker_killed(pipeline: Pipeline, world: World, place: str) -> None:
    pipeline.feed(4000)
    pipeline.run(failpoints=f"{place}=kill@2", master="local[2,3]")
    assert_exactly_once(pipeline, world)


def test_the_server_crashes_under_a_decision(
    pipeline: Pipeline, world: World, spark: SparkSession
) -> None:
    pipeline.feed(4000)
    pipeline.run(expect=KILLED, failpoints="decided=kill@2")
    world.server.stop(how=SIGQUIT)
    world.server.start()
    assert waiting(world) > 0
    pipeline.resume(spark)
    assert_exactly_once(pipeline, world)


def test_what_was_decided_is_committed_and_what_was_not_is_removed_by_a_recovery(
    pipeline: Pipeline, world: World, spark: SparkSession
) -> None:
    """From the checkpoint, which names the database, and a connection, which it does not hold."""
    reach = {"postgres": world.server.dsn}
    pipeline.feed(4000)
    pipeline.run(expect=KILLED, failpoints="decided=kill@2")
    with pytest.raises(ConfigurationError, match="give how to reach its database"):
        plan_recovery(pipeline.checkpoint)
    plan = plan_recovery(pipeline.checkpoint, reach=reach)
    assert {step.action for step in plan.steps} == {Action.COMMIT}
    assert all(step.time_left_ms is None for step in plan.steps), "nothing ends it by itself"
    report = execute_recovery(plan, reach=reach, force=True)
    assert {each.result for each in report.results} == {Result.DONE}
    assert visible(world).total() == 4000
    for file in Path(pipeline.checkpoint, "eos").rglob("*.json"):
        assert world.server._password not in file.read_text()

    pipeline.feed(2000)
    pipeline.run(expect=KILLED, failpoints="prepared=kill@1")
    report = execute_recovery(pipeline.checkpoint, reach=reach, force=True)
    assert report.count(Result.DONE) == len(report.results) > 0
    assert report.sealed is not None
    assert waiting(world) == 0
    pipeline.resume(spark)
    assert_exactly_once(pipeline, world)


def test_at_least_once_writes_visible_rows(
    pipeline: Pipeline, world: World, spark: SparkSession
) -> None:
    pipeline.feed(2000)
    pipeline.resume(spark, guarantee="at_least_once")
    assert visible(world) == Counter(pipeline.expected)
