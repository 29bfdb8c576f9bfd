"""A pipeline whose app runs in the test's own process, for many short ones on one session."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from airflow_eos.sinks import KafkaSink, Output, start_exactly_once
from tests.support.pipeline import Pipeline


class Job(Pipeline):
    """Give it ``spark`` once it is made."""

    spark: SparkSession

    @property
    def sink(self) -> KafkaSink:
        return KafkaSink(
            bootstrap_servers=self.bootstrap,
            topic=f"{self.name}-out",
            transactional_id_prefix=self.name,
            transaction_timeout=timedelta(minutes=1),
            batch_within=timedelta(seconds=10),
            recover_within=timedelta(seconds=10),
        )

    def frame(self, **options: str) -> DataFrame:
        """The rows that are fed; ``options`` of Spark's source may say otherwise."""
        return (
            self.spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("subscribe", f"{self.name}-in")
            .option("startingOffsets", "earliest")
            .options(**options)
            .load()
            .select("key", "value")
        )

    def deliver(self, sink: KafkaSink | list[Output] | None = None, **changes: Any) -> None:
        """Everything that the input holds; raises what the app would end with."""
        df = changes.pop("df", None)
        given: dict[str, Any] = {
            "checkpoint_location": self.checkpoint,
            "trigger": {"availableNow": True},
        }
        query = start_exactly_once(
            self.frame() if df is None else df, sink or self.sink, **(given | changes)
        )
        assert query.awaitTermination(300)
