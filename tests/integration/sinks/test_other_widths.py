"""A promise half kept, replayed by another number of tasks: which rows are written, in what order.

The driver dies by an exception at a failpoint, and the next one starts in the same session.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from airflow_eos.local import EmbeddedKafka
from airflow_eos.sinks import KafkaSink, start_exactly_once
from tests.support.pipeline import Pipeline, wait_until

ROWS, SHORT, LONG = 1200, timedelta(seconds=8), timedelta(seconds=60)
"""Of the first run, the transactions must time out; of the next ones, never."""


@dataclass
class Widths:
    """One pipeline whose number of tasks changes from start to start."""

    spark: SparkSession
    pipeline: Pipeline
    monkeypatch: pytest.MonkeyPatch
    columns: Mapping[str, str] = field(default_factory=dict)

    def run(self, tasks: int, *, timeout: timedelta = LONG, die_at: str = "") -> None:
        """To the end of the input, or to the failpoint."""
        self.monkeypatch.setenv("EOS_FAILPOINTS", f"{die_at}=raise" if die_at else "")
        source = (
            self.spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.pipeline.bootstrap)
            .option("subscribe", f"{self.pipeline.name}-in")
            .option("startingOffsets", "earliest")
            .load()
            .coalesce(tasks)  # which keeps what a task reads together, and its order
        )
        extra = [F.expr(sql).alias(name) for name, sql in self.columns.items()]
        sink = KafkaSink(
            bootstrap_servers=self.pipeline.bootstrap,
            topic=f"{self.pipeline.name}-out",
            transactional_id_prefix=self.pipeline.name,
            transaction_timeout=timeout,
            batch_within=timeout / 4,
            recover_within=timeout / 4,
        )
        query = start_exactly_once(
            source.select("key", "value", *extra),
            sink,
            checkpoint_location=self.pipeline.checkpoint,
            trigger={"availableNow": True},
        )
        if not die_at:
            query.awaitTermination()
            return
        with pytest.raises(Exception, match=die_at):
            query.awaitTermination()
        wait_until(lambda: self.pipeline.open_transactions() == (), what="the broker's own abort")


@pytest.fixture
def widths(
    spark: SparkSession,
    kafka_broker: EmbeddedKafka,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Widths:
    return Widths(spark, Pipeline(kafka_broker, tmp_path), monkeypatch)


TIME = "timestamp'2026-01-01 12:00:00.123456'"
ITS_OWN_TIME = {"message.timestamp.type": "LogAppendTime"}
KEPT = {"retention.ms": "-1"}
"""``TIME`` is past the default, and every five minutes the broker looks."""
proof = partial(pytest.param, marks=pytest.mark.proof)


@pytest.mark.proof
def test_rows_of_a_key_keep_their_order_through_replays_of_every_width(widths: Widths) -> None:
    """2 → 1 → 3, then 3 → 2."""
    pipeline = widths.pipeline
    pipeline.feed(ROWS)
    widths.run(2, timeout=SHORT, die_at="settled-some")
    assert 0 < len(pipeline.visible()) < ROWS, "a part of the batch must be there already"
    widths.run(1, timeout=SHORT, die_at="decided")
    widths.run(3)
    pipeline.assert_exactly_once()
    pipeline.assert_ordered()
    pipeline.feed(ROWS)
    widths.run(3, timeout=SHORT, die_at="settled-some")
    assert ROWS < len(pipeline.visible()) < 2 * ROWS
    widths.run(2)
    pipeline.assert_exactly_once()
    pipeline.assert_ordered()


@pytest.mark.proof
@pytest.mark.parametrize(
    ("columns", "output"),
    [
        proof({"partition": "cast(null AS int)"}, {}, id="no-partition"),
        proof({"partition": "if(key = 'k1', 2, null)"}, {}, id="some-partitions"),
        proof({"timestamp": "cast(null AS timestamp)"}, {}, id="no-timestamp"),
        proof({"timestamp": TIME}, {}, id="timestamp"),
        proof({"timestamp": TIME}, ITS_OWN_TIME, id="stamped-by-the-topic"),
        pytest.param(
            {"timestamp": "cast(null AS timestamp)", "partition": "cast(null AS int)"},
            ITS_OWN_TIME,
            id="all-of-it",
        ),
    ],
)
def test_what_kafka_fills_in_does_not_refuse_a_replay(
    widths: Widths, columns: Mapping[str, str], output: Mapping[str, str]
) -> None:
    pipeline = widths.pipeline = replace(
        widths.pipeline, name=uuid.uuid4().hex[:8], output={**KEPT, **output}
    )
    widths.columns = columns
    pipeline.feed(ROWS)
    widths.run(2, timeout=SHORT, die_at="settled-some")
    assert 0 < len(pipeline.visible()) < ROWS, "a part of the batch must be there already"
    widths.run(1)
    pipeline.assert_exactly_once()
    pipeline.assert_ordered()
