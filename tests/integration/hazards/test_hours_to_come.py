"""An hour of event time is told once it is over, whatever times single rows have."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.events import events_since, hours_completed, read_settled
from airflow_eos.sinks import FileSink, start_exactly_once

HOUR = timedelta(hours=1)


@pytest.mark.parametrize("keeps_state", [False, True], ids=["stateless", "with state"])
def test_one_row_of_next_year_tells_no_hour_that_is_not_over(
    spark: SparkSession, tmp_path: Path, keeps_state: bool
) -> None:
    """Nor do rows of 1970, of before, or of no time: they have no part in it."""
    now = datetime.now(UTC).replace(microsecond=0)
    begun = (now - 3 * HOUR).replace(minute=0, second=0)
    strange = ["1970-01-01T00:00:00Z", "1931-05-05T00:00:00Z", None]
    batches: list[list[datetime | str | None]] = [
        [begun, *strange],
        [now + timedelta(days=365)],
        [now],
        [now],
    ]
    (tmp_path / "in").mkdir()
    source = spark.readStream.schema("at timestamp").option("maxFilesPerTrigger", 1)
    rows = source.json(str(tmp_path / "in")).withWatermark("at", "1 minute")
    if keeps_state:
        rows = rows.dropDuplicatesWithinWatermark(["at"])
    for number, times in enumerate(batches):
        lines = [json.dumps({"at": t if isinstance(t, str | None) else str(t)}) for t in times]
        (tmp_path / f"in/{number}.json").write_text("\n".join(lines))
        query = start_exactly_once(
            rows.selectExpr("cast(at AS string) AS at"),
            FileSink(str(tmp_path / "out"), "json"),
            checkpoint_location=str(tmp_path / "ck"),
            trigger={"availableNow": True},
        )
        assert query.awaitTermination(300)
    found = read_settled(CheckpointStore.open(str(tmp_path / "ck")), after=None)
    told: list[str] = []
    for event in events_since(None, found, each_batch=True):
        told += hours_completed(event, since=begun)
        assert event.watermark_ms is None or event.watermark_ms <= event.settled_at_ms
    last = datetime.now(UTC)
    hours = [f"{begun + n * HOUR:%Y-%m-%dT%H}" for n in range(9) if begun + (n + 1) * HOUR <= last]
    assert told in (hours, hours[:-1])
    assert len(told) >= 2
