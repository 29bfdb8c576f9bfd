"""A query that reads what it writes: its rows would go round without end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_eos.core.checkpoint import CheckpointStore, DecisionLog
from airflow_eos.core.protocol.decision import Verdict
from airflow_eos.errors import ConfigurationError
from airflow_eos.sinks import FileSink, Output, start_exactly_once
from tests.integration.hazards.spark_job import Job
from tests.support.topics import produce, read_topic


def test_a_pattern_that_matches_the_output_is_refused_before_a_row_is_written(job: Job) -> None:
    job.feed(10)
    frame = job.spark.readStream.format("kafka").option("kafka.bootstrap.servers", job.bootstrap)
    frame = frame.option("subscribePattern", f"{job.name}-.*").option("startingOffsets", "earliest")
    everything = frame.load().select("key", "value")
    with pytest.raises(ConfigurationError, match=f"own output, topic '{job.name}-out'"):
        job.deliver(df=everything)
    assert read_topic(job.bootstrap, f"{job.name}-out") == []
    assert not Path(job.checkpoint, "eos/drivers").exists(), "refused after a driver was stopped"
    job.deliver(df=everything, reads_own_output=True)
    assert len(read_topic(job.bootstrap, f"{job.name}-out")) == 10


def test_rows_that_name_the_input_as_their_topic_are_refused_before_they_are_promised(
    job: Job,
) -> None:
    job.feed(10)
    back = job.frame().selectExpr("key", "value", f"'{job.name}-in' AS topic")
    with pytest.raises(Exception, match=f"own output, topic '{job.name}-in'"):
        job.deliver(df=back)
    assert len(read_topic(job.bootstrap, f"{job.name}-in")) == 10, "rows went round"
    decided = DecisionLog(CheckpointStore.open(job.checkpoint)).of_batch(0)
    assert {each.verdict for each in decided} == {Verdict.ABORT}, "it was promised"
    # Spark reads what was aborted, unless it is told otherwise.
    job.deliver(df=job.frame(**{"kafka.isolation.level": "read_committed"}))
    job.assert_exactly_once()


@pytest.mark.parametrize(("read", "written"), [("in", "in"), ("in/*", "in/a"), ("in", "in/a")])
def test_files_are_not_written_where_they_are_read(job: Job, tmp_path: Path, read, written) -> None:
    (tmp_path / "in/a").mkdir(parents=True)
    (tmp_path / "in/a/0.json").write_text(json.dumps({"key": "k", "value": "v"}))
    rows = job.spark.readStream.schema("key string, value string").json(str(tmp_path / read))
    with pytest.raises(ConfigurationError, match="own output, folder"):
        start_exactly_once(
            rows,
            [Output("rows", FileSink(str(tmp_path / written), "json"))],
            checkpoint_location=job.checkpoint,
            trigger={"availableNow": True},
        )


def test_a_topic_of_the_same_name_that_was_only_made_later_is_noticed(job: Job) -> None:
    """The pattern matches nothing of ours when the query starts, and one day it does."""
    job.feed(10)
    frame = job.spark.readStream.format("kafka").option("kafka.bootstrap.servers", job.bootstrap)
    frame = frame.option("subscribePattern", f"{job.name}-(in|later)")
    everything = frame.option("startingOffsets", "earliest").load()
    rows = everything.selectExpr("key", "value", f"'{job.name}-later' AS topic")
    job.broker.create_topic(f"{job.name}-later", 1)
    produce(job.bootstrap, f"{job.name}-later", [("k", "theirs")])
    with pytest.raises(Exception, match=f"own output, topic '{job.name}-later'"):
        job.deliver(df=rows)
    assert len(read_topic(job.bootstrap, f"{job.name}-later")) == 1
