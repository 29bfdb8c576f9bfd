"""State that a user's own class keeps (transformWithState): each row updates it once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from airflow_eos.local import EmbeddedKafka
from tests.integration.hazards.spark_job import Job

pytestmark = pytest.mark.long

_ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Numbered(StatefulProcessor):
    """Numbers the rows of each key."""

    def init(self, handle: Any) -> None:
        self._last = handle.getValueState("last", "last int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        del timerValues
        last = self._last.get()[0] if self._last.exists() else 0
        for row in rows:
            last += 1
            yield Row(key=key[0], value=f"{row.value}:{last}")
        self._last.update((last,))

    def close(self) -> None:
        pass


def numbered(df: DataFrame) -> DataFrame:
    texts = df.selectExpr("CAST(key AS STRING) key", "CAST(value AS STRING) value")
    return texts.groupBy("key").transformWithState(
        Numbered(), "key string, value string", outputMode="Append", timeMode="None"
    )


@pytest.mark.parametrize("place", ["prepared", "decided", "settled-some", "settled"])
def test_each_row_is_numbered_once_wherever_its_driver_dies(
    tmp_path: Path,
    spark: SparkSession,
    die_at: Callable[[str], None],
    kafka_broker: EmbeddedKafka,
    place: str,
) -> None:
    job = Job(kafka_broker, tmp_path / "job")
    (tmp_path / "job").mkdir()
    job.spark = spark.newSession()
    job.spark.conf.set("spark.sql.streaming.stateStore.providerClass", _ROCKS)
    job.spark.conf.set("spark.sql.shuffle.partitions", "2")
    job.feed(60, keys=6)
    job.deliver(df=numbered(job.frame()))
    job.feed(60, keys=6)
    die_at(place)
    with pytest.raises(RuntimeError):
        job.deliver(df=numbered(job.frame()))
    die_at("")
    if place == "decided":
        job.lose_what_is_open()  # so the promise is replayed
    job.deliver(df=numbered(job.frame()))
    seen = [(key, *value.rsplit(":", 1)) for key, value in job.visible()]
    assert Counter((key, value) for key, value, _ in seen) == Counter(job.expected)
    numbers = Counter((key, int(number)) for key, _, number in seen)
    assert numbers == Counter((f"k{key}", number) for key in range(6) for number in range(1, 21))
