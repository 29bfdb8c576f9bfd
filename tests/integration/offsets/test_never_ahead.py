"""An ordinary admin client looks at the group while drivers are killed: never ahead, then equal."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_eos.core.checkpoint.backend import PIPELINE
from airflow_eos.local import EmbeddedKafka
from airflow_eos.recovery import execute_recovery, plan_recovery
from tests.support.groups import Watch
from tests.support.host import Host
from tests.support.pipeline import KILLED, Pipeline, kill, wait_until


@pytest.fixture
def pipeline(kafka_broker: EmbeddedKafka, host: Host, tmp_path: Path) -> Pipeline:
    pipeline = Pipeline(kafka_broker, tmp_path, host=host)
    pipeline.settings = {"consumer_group": f"{pipeline.name}-lag"}
    return pipeline


def watch(pipeline: Pipeline) -> Watch:
    return Watch(
        pipeline.bootstrap,
        f"{pipeline.name}-lag",
        source=f"{pipeline.name}-in",
        output=f"{pipeline.name}-out",
    )


@pytest.mark.proof
@pytest.mark.parametrize(
    "place",
    [
        "decided@2",  # promised, nothing visible
        # visible, the group does not show it
        pytest.param("settled@2", marks=pytest.mark.proof),
        # in an open transaction of the group
        pytest.param("group-prepared@2", marks=pytest.mark.proof),
        # shown, Spark does not know it yet
        pytest.param("followed@2", marks=pytest.mark.proof),
    ],
)
def test_never_ahead_and_equal_in_the_end(
    pipeline: Pipeline, spark: SparkSession, place: str
) -> None:
    pipeline.feed(6000)
    with watch(pipeline) as seen:
        pipeline.run(expect=KILLED, failpoints=place.replace("@", "=kill@"))
        before = seen.behind()
        kafka = {"bootstrap.servers": pipeline.bootstrap}
        assert execute_recovery(pipeline.checkpoint, kafka, force=True).complete
        if not place.startswith("followed"):
            assert seen.behind() < before, "recovery shows what it has settled"
        assert plan_recovery(pipeline.checkpoint, kafka).steps == ()
        pipeline.feed(1000)
        pipeline.resume(spark)
        assert seen.behind() == 0
    assert seen.ahead == []
    assert seen.looks > 20
    pipeline.assert_exactly_once()


@pytest.mark.slow
@pytest.mark.proof
def test_a_thousand_looks_while_drivers_are_killed_at_random(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    """SIGKILL at any moment, recovery by others in between, and the group is looked at all along.

    How many looks and kills there were is printed: ``pytest -m proof -s``.
    """
    chance = random.Random(16)
    kafka = {"bootstrap.servers": pipeline.bootstrap}
    kills = 0
    with watch(pipeline) as seen:
        while seen.looks < 1000 or kills < 5:
            pipeline.feed(1500)
            process = pipeline.start(until_caught_up=False, max_offsets_per_trigger=100)
            began = seen.looks
            wait_until(lambda: seen.looks > began + 20, what="looks")  # noqa: B023 - read at once
            time.sleep(chance.uniform(2, 7))
            kill(process)
            kills += 1
            if chance.random() < 0.3 and (Path(pipeline.checkpoint) / PIPELINE).exists():
                execute_recovery(pipeline.checkpoint, kafka, force=True)
        pipeline.resume(spark)
        assert seen.behind() == 0
    assert seen.ahead == []
    pipeline.assert_exactly_once()
    told = f"{seen.looks} looks, {kills} kills, {len(pipeline.expected)} rows: never ahead\n"
    sys.stdout.write(told)
