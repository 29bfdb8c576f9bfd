"""What ``main`` of the example apps starts, and what is their own; a real Spark, no Kafka."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import ModuleType, SimpleNamespace
from typing import Any

import fastavro
import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from airflow_eos.sinks.app import App
from spark_apps import avro_windows, deduplicate, log_sync, page_views, sensors, word_count
from spark_apps.transfers import postings
from tests.integration.spark_apps.test_transformations import rows

Started = Callable[..., DataFrame]


@pytest.fixture
def started(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    """``started(app, *values)``: the rows that ``app`` delivers of a topic with these values."""
    before = dict(spark.conf.getAll)
    found: list[DataFrame] = []

    def start(_: App, frame: DataFrame, **__: Any) -> Any:
        found.append(frame)
        return SimpleNamespace(awaitTermination=lambda: None)

    def run(app: ModuleType, *values: object) -> DataFrame:
        monkeypatch.setattr(App, "read", lambda *_: rows(spark, *values))
        monkeypatch.setattr(App, "start", start)
        arguments = ["--bootstrap-servers", "k:1", "--checkpoint", "/c"]
        monkeypatch.setattr(sys, "argv", [app.__name__, *arguments])
        app.main()
        return found.pop()

    yield run
    for name in set(spark.conf.getAll) - set(before):
        spark.conf.unset(name)
    for name, value in before.items():
        if spark.conf.get(name) != value:
            spark.conf.set(name, value)


@pytest.mark.parametrize(
    "app", [word_count, page_views, sensors, deduplicate], ids=lambda app: app.__name__
)
def test_an_app_with_state_keeps_it_in_rocksdb_with_logs_of_changes(spark, started, app):
    started(app, "{}")
    assert spark.conf.get("spark.sql.streaming.stateStore.providerClass").endswith(
        "RocksDBStateStoreProvider"
    )
    changes = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
    assert spark.conf.get(changes) == "true"


def test_lines_of_a_day_are_in_one_task(started):
    """So a batch is a file a day, and not as many as there are tasks."""
    lines = [{"at": f"2026-11-{20 + number % 3}T10:00:00Z", "host": "h"} for number in range(30)]
    found = started(log_sync, *lines).select("day", F.spark_partition_id()).distinct().collect()
    assert sorted(row.day for row in found) == ["2026-11-20", "2026-11-21", "2026-11-22"]


def test_the_two_sides_of_a_transfer_add_up_to_nothing(spark):
    transfer = {"transfer": "t-1", "payer": "a", "payee": "b", "amount": 1250}
    [row] = postings(rows(spark, transfer), dead_letter_topic="bad").collect()
    assert [(side.account, side.amount) for side in row.sides] == [("a", -1250), ("b", 1250)]
    told = [json.loads(event.value) for event in row.events]
    assert [(event["account"], event["amount"]) for event in told] == [("a", -1250), ("b", 1250)]


def test_a_record_of_a_schema_that_is_not_known_is_put_aside_and_not_misread(spark):
    schema = {
        "type": "record",
        "name": "Person",
        "fields": [
            {"name": "identifyNumber", "type": "string"},
            {"name": "seenAt", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        ],
    }
    body = io.BytesIO()
    seen = {"identifyNumber": "1" * 18, "seenAt": datetime(2026, 11, 20, tzinfo=UTC)}
    fastavro.schemaless_writer(body, schema, seen)
    values = [b"\0" + number.to_bytes(4, "big") + body.getvalue() for number in (7, 8)]
    sent = spark.createDataFrame([(b"k", value) for value in values], "key binary, value binary")
    read = sent.withColumn("person", avro_windows.person({7: json.dumps(schema)}))
    [letter] = avro_windows.dead_letters(read, "bad").collect()
    assert bytes(letter.value) == values[1]


class Handle:
    """Spark's handle of one key: its value, and the timers that are set."""

    def __init__(self) -> None:
        self.timers: set[int] = set()
        self._value: Any = None
        self.registerTimer, self.deleteTimer = self.timers.add, self.timers.remove

    def getValueState(self, *_: Any) -> Any:  # noqa: N802 - Spark's name
        def update(value: Any) -> None:
            self._value = value

        return SimpleNamespace(get=lambda: self._value, update=update)


def test_a_reading_moves_the_timer_of_its_sensor():
    handle, silence = Handle(), sensors.Silence()
    silence.init(handle)  # type: ignore[arg-type]
    for at_ms in (1_000, 5_000, 3_000):
        new = pd.DataFrame({"at_ms": [at_ms], "celsius": [20.0]})
        assert list(silence.handleInputRows(("s-1",), iter([new]), None)) == []
    assert handle.timers == {5_000 + sensors.SILENT_AFTER_MS}
