"""A checkpoint is deleted. Where the pipeline was drained, an empty one goes on from the group."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_eos.errors import ConfigurationError, EosError, OwnershipError
from airflow_eos.local import EmbeddedKafka
from tests.support.groups import GroupSeen
from tests.support.host import Host
from tests.support.pipeline import KILLED, Pipeline


@pytest.fixture
def pipeline(kafka_broker: EmbeddedKafka, host: Host, tmp_path: Path) -> Pipeline:
    pipeline = Pipeline(kafka_broker, tmp_path, host=host)
    pipeline.settings = {"consumer_group": f"{pipeline.name}-etl"}
    return pipeline


def lose_the_checkpoint(pipeline: Pipeline) -> None:
    shutil.rmtree(pipeline.checkpoint)


def refused(pipeline: Pipeline, spark: SparkSession, **changes: Any) -> str:
    with pytest.raises(EosError) as error:
        pipeline.resume(spark, **changes)
    return f"{type(error.value).__name__}: {error.value}"


@pytest.mark.proof
def test_a_drained_pipeline_goes_on_exactly_again_and_again(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    pipeline.feed(5000)
    pipeline.resume(spark)
    for _ in range(2):
        lose_the_checkpoint(pipeline)
        pipeline.feed(3000)
        pipeline.resume(spark, resume=True)
        pipeline.assert_exactly_once()
    pipeline.feed(1000)
    pipeline.resume(spark)  # the new checkpoint is one as any other
    pipeline.assert_exactly_once()
    pipeline.assert_ordered()
    assert sum(GroupSeen(pipeline.bootstrap, f"{pipeline.name}-etl").offsets().values()) == 12_000


@pytest.mark.proof
@pytest.mark.parametrize(
    "place",
    [
        "prepared@2",  # transactions are open, which nobody has promised
        pytest.param("decided@2", marks=pytest.mark.proof),
        pytest.param(
            "settled@2", marks=pytest.mark.proof
        ),  # readers have more than the group shows
        "followed@2",  # the group shows all, and nobody has said that this is the end
    ],
)
def test_one_that_was_not_drained_is_refused(
    pipeline: Pipeline, spark: SparkSession, place: str
) -> None:
    pipeline.feed(6000)
    pipeline.run(expect=KILLED, failpoints=place.replace("@", "=kill@"))
    lose_the_checkpoint(pipeline)
    before = pipeline.visible()
    said = refused(pipeline, spark, resume=True)
    assert said.startswith("OwnershipError")
    assert "not drained" in said
    assert pipeline.visible() == before


@pytest.mark.proof
@pytest.mark.parametrize("place", ["settled", pytest.param("prepared", marks=pytest.mark.proof)])
def test_one_that_went_on_after_it_was_drained_is_refused(
    pipeline: Pipeline, spark: SparkSession, place: str
) -> None:
    """The group no longer says that it was drained: whoever starts takes that back first."""
    pipeline.feed(2000)
    pipeline.resume(spark)
    pipeline.feed(2000)
    pipeline.run(expect=KILLED, failpoints=f"{place}=kill@1")
    lose_the_checkpoint(pipeline)
    said = refused(pipeline, spark, resume=True)
    assert "batch 0" in said, "the offsets are still those of the batch that was drained"
    assert "not drained" in said


@pytest.mark.parametrize("place", ["prepared", pytest.param("settled", marks=pytest.mark.proof)])
def test_a_group_that_was_put_back_to_when_it_was_drained_is_not_believed(
    pipeline: Pipeline, spark: SparkSession, place: str
) -> None:
    """The outputs know of more: a decision that was settled, or a transaction that is open."""
    group = GroupSeen(pipeline.bootstrap, f"{pipeline.name}-etl")
    pipeline.feed(2000)
    pipeline.resume(spark)
    drained = group.committed()
    pipeline.feed(2000)
    pipeline.run(expect=KILLED, failpoints=f"{place}=kill@1")
    lose_the_checkpoint(pipeline)
    group.put_back(drained)
    before = pipeline.visible()
    assert "not drained" in refused(pipeline, spark, resume=True)
    assert pipeline.visible() == before


@pytest.mark.proof
def test_without_being_told_so_nothing_goes_on_from_a_group(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    pipeline.feed(2000)
    pipeline.resume(spark)
    lose_the_checkpoint(pipeline)
    assert "another pipeline" in refused(pipeline, spark)
    assert "OwnershipError" in refused(pipeline, spark, consumer_group="")
    pipeline.assert_exactly_once()


@pytest.mark.proof
def test_killed_while_it_takes_the_group_over(pipeline: Pipeline, spark: SparkSession) -> None:
    pipeline.feed(2000)
    pipeline.resume(spark)
    lose_the_checkpoint(pipeline)
    pipeline.feed(2000)
    pipeline.run(expect=KILLED, failpoints="group-prepared=kill@1", resume=True)
    pipeline.run(expect=KILLED, failpoints="prepared=kill@1", resume=True)
    pipeline.resume(spark, resume=True)
    pipeline.assert_exactly_once()


@pytest.mark.proof
def test_a_source_that_begins_elsewhere_is_refused_before_the_first_row(
    pipeline: Pipeline, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_eos.sinks import ConsumerGroup

    pipeline.feed(2000)
    pipeline.resume(spark)
    lose_the_checkpoint(pipeline)
    with monkeypatch.context() as patch:
        patch.setattr(ConsumerGroup, "starting_offsets", lambda *_: "earliest")
        for _ in range(2):
            said = refused(pipeline, spark, resume=True)
            assert said.startswith("ConfigurationError"), said
            assert "did not begin where consumer group" in said
    pipeline.assert_exactly_once()
    lose_the_checkpoint(pipeline)  # as the error says
    pipeline.feed(100)
    pipeline.resume(spark, resume=True)
    pipeline.assert_exactly_once()


@pytest.mark.proof
def test_a_query_with_state_is_refused(pipeline: Pipeline, spark: SparkSession) -> None:
    pipeline.feed(100)
    with pytest.raises(ConfigurationError, match=r"keeps state \(Aggregate\).*--resume-from-group"):
        pipeline.resume(spark, kind="count", resume=True)


@pytest.mark.proof
def test_a_group_of_somebody_else_is_gone_on_from_and_never_overwritten(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    """Whoever comes from another engine names its group, and that it is to go on from it."""
    pipeline.feed(3000)
    seen = GroupSeen(pipeline.bootstrap, f"{pipeline.name}-etl")
    seen.reset({(f"{pipeline.name}-in", p): 100 for p in range(3)})
    with pytest.raises(OwnershipError, match=r"no pipeline of this package.*\(resume=True\)"):
        pipeline.resume(spark)
    assert set(seen.offsets().values()) == {100}
    assert not Path(pipeline.checkpoint).exists(), "a start that is refused leaves nothing behind"
    pipeline.resume(spark, resume=True)
    assert len(pipeline.visible()) == 2700
    assert sum(seen.offsets().values()) == 3000


@pytest.mark.proof
def test_a_group_without_offsets_is_no_place_to_start(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    pipeline.feed(100)
    with pytest.raises(OwnershipError, match="no offsets to go on from"):
        pipeline.resume(spark, resume=True)
