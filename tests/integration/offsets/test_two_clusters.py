"""The source and its group are in one Kafka cluster, the output is in another."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from pyspark.sql import SparkSession

from airflow_eos.errors import OwnershipError
from airflow_eos.local import EmbeddedKafka
from airflow_eos.operators import RecoverTransactionsOperator
from airflow_eos.recovery import execute_recovery, plan_recovery
from tests.support.groups import GroupSeen
from tests.support.host import Host
from tests.support.pipeline import KILLED, Pipeline
from tests.support.topics import produce

PLACES = [
    pytest.param("decided@2", marks=pytest.mark.proof),  # promised, nothing visible
    pytest.param("settled-some@2", marks=pytest.mark.proof),  # a part of it is
    # visible, and in an open transaction of the group
    pytest.param("group-prepared@2", marks=pytest.mark.proof),
    # shown, Spark does not know it yet
    pytest.param("followed@2", marks=pytest.mark.proof),
]


@pytest.fixture(scope="module")
def source_cluster() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka() as broker:
        yield broker


@dataclass
class Across(Pipeline):
    """Its input topic and its group are elsewhere; ``broker`` has its output."""

    source: EmbeddedKafka | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.source.create_topic(f"{self.name}-in", self.partitions)
        self.group = f"{self.name}-etl"
        self.settings = {
            "source_bootstrap": self.source.bootstrap_servers,
            "consumer_group": self.group,
        }

    def feed(self, count: int, keys: int = 50) -> None:
        produce(self.source.bootstrap_servers, f"{self.name}-in", self.expect(count, keys))

    @property
    def kafka(self) -> dict[str, str]:
        """How to reach the output."""
        return {"bootstrap.servers": self.bootstrap}

    @property
    def reach(self) -> dict[str, Any]:
        return {"consumer_group": {"bootstrap.servers": self.source.bootstrap_servers}}

    def shown(self) -> int:
        """How many rows the group shows as settled."""
        with closing(GroupSeen(self.source.bootstrap_servers, self.group)) as seen:
            return sum(seen.offsets().values())

    def assert_group_not_at_the_output(self) -> None:
        with closing(GroupSeen(self.bootstrap, self.group)) as seen:
            assert seen.offsets() == {}

    def assert_whole(self) -> None:
        self.assert_exactly_once()
        assert self.shown() == len(self.expected)
        self.assert_group_not_at_the_output()


@pytest.fixture
def pipeline(
    kafka_broker: EmbeddedKafka, source_cluster: EmbeddedKafka, host: Host, tmp_path: Path
) -> Across:
    return Across(kafka_broker, tmp_path, host=host, source=source_cluster)


@pytest.mark.parametrize("place", PLACES)
def test_a_recovery_that_reaches_both_is_exact_and_one_that_takes_one_for_the_other_is_refused(
    pipeline: Across, spark: SparkSession, place: str
) -> None:
    pipeline.feed(6000)
    pipeline.run(failpoints=place.replace("@", "=kill@"), expect=KILLED)
    assert pipeline.shown() <= len(pipeline.visible())

    before = pipeline.visible(), pipeline.shown()
    for recover in (execute_recovery, plan_recovery):
        with pytest.raises(OwnershipError, match="consumer_group"):
            recover(pipeline.checkpoint, pipeline.kafka)
    assert (pipeline.visible(), pipeline.shown()) == before
    pipeline.assert_group_not_at_the_output()

    report = execute_recovery(pipeline.checkpoint, pipeline.kafka, reach=pipeline.reach, force=True)
    assert report.complete
    assert plan_recovery(pipeline.checkpoint, pipeline.kafka, reach=pipeline.reach).steps == ()
    assert pipeline.shown() == len(pipeline.visible()) == 4000
    pipeline.feed(1000)
    pipeline.resume(spark)
    pipeline.assert_whole()


@pytest.mark.proof
def test_a_drained_pipeline_goes_on_from_the_group_of_the_other_cluster(
    pipeline: Across, spark: SparkSession
) -> None:
    pipeline.feed(3000)
    pipeline.resume(spark)
    shutil.rmtree(pipeline.checkpoint)
    pipeline.feed(2000)
    pipeline.resume(spark, resume=True)
    pipeline.assert_whole()


def test_airflow_is_told_by_the_name_of_the_participant(
    pipeline: Across, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As what it is called in decisions: ``participant_conn_ids={"consumer_group": …}``."""
    for name, extra in (("OUT", pipeline.kafka), ("IN", pipeline.reach["consumer_group"])):
        told = json.dumps({"conn_type": "kafka", "extra": extra})
        monkeypatch.setenv(f"AIRFLOW_CONN_TWO_{name}", told)

    def recovery(**told: Any) -> RecoverTransactionsOperator:
        return RecoverTransactionsOperator(
            task_id="recover",
            checkpoint_location=pipeline.checkpoint,
            kafka_config_id="two_out",
            patience=timedelta(0),
            force=True,
            **told,
        )

    pipeline.feed(6000)
    pipeline.run(failpoints="settled=kill@2", expect=KILLED)
    with pytest.raises(AirflowFailException, match="consumer_group"):
        recovery().execute({})
    pipeline.assert_group_not_at_the_output()
    recovery(participant_conn_ids={"consumer_group": "two_in"}).execute({})
    assert pipeline.shown() == len(pipeline.visible()) == 4000
    pipeline.resume(spark)
    pipeline.assert_whole()
