"""A streaming query that loads the classes our apps load: a state store, a worker, a checkpoint."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession


def pass_on(frame: DataFrame, _batch_id: int) -> None:
    frame.mapInArrow(lambda batches: batches, frame.schema).collect()


def main() -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "in").mkdir()
        (Path(folder) / "in" / "rows.txt").write_text("a\nb\na\n")
        counts = spark.readStream.text(f"{folder}/in").groupBy("value").count()
        query = (
            counts.writeStream.outputMode("update")
            .trigger(availableNow=True)
            .option("checkpointLocation", f"{folder}/checkpoint")
            .foreachBatch(pass_on)
            .start()
        )
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
