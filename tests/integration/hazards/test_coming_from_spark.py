"""A checkpoint of Spark's own sinks goes on with ours, and back (docs/from-spark.md)."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame

from airflow_eos.errors import ContinuityError
from tests.integration.hazards.spark_job import Job


def by_sparks_sink(job: Job) -> None:
    query = (
        job.frame()
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", job.bootstrap)
        .option("topic", f"{job.name}-out")
        .option("checkpointLocation", job.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)


def by_foreach_batch(job: Job) -> None:
    def write(rows: DataFrame, _batch: int) -> None:
        rows.write.format("kafka").option("kafka.bootstrap.servers", job.bootstrap).option(
            "topic", f"{job.name}-out"
        ).save()

    query = (
        job.frame()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", job.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)


@pytest.mark.parametrize("theirs", [by_sparks_sink, by_foreach_batch])
def test_a_query_of_sparks_own_comes_goes_on_exactly_and_goes_back(job: Job, theirs) -> None:
    for deliver in (theirs, Job.deliver, theirs):
        job.feed(300)
        deliver(job)
        job.assert_exactly_once()


def test_coming_back_after_sparks_sink_ran_in_between_is_refused_and_says_who_it_may_have_been(
    job: Job,
) -> None:
    job.feed(100)
    job.deliver()
    job.feed(100)
    by_sparks_sink(job)
    with pytest.raises(ContinuityError, match="another sink, as Spark's own, ran batch 1"):
        job.deliver()
    job.assert_exactly_once()
