"""What the driver of ``format("eos")`` is told, and when a batch may begin; what its jar is of."""

from __future__ import annotations

import zipfile
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_eos.core.delivery.query import Drained
from airflow_eos.errors import ConfigurationError
from airflow_eos.sinks.format import JAR, BatchCall, require_trigger, settings_of

TOLD = {"bootstrap_servers": "b:9092", "topic": "out", "transactional_id_prefix": "orders"}
AVAILABLE_NOW, SECONDS = {"availableNow": True}, {"processingTime": "5 seconds"}


def test_an_option_is_a_setting_of_an_app_and_sparks_own_are_left_alone(monkeypatch):
    monkeypatch.setenv("EOS_RECOVER_WITHIN_MS", "1000")
    sparks = {"checkpointlocation": "/cp", "path": "orders", "queryname": "clean"}
    found = settings_of({**TOLD, **sparks, "trigger_interval": "available-now"}, "file:/cp")
    assert (found.checkpoint_location, found.trigger_interval) == ("file:/cp", "available-now")
    assert (found.transactional_id_prefix, found.bootstrap_servers) == ("orders", "b:9092")
    assert found.recover_within == timedelta(seconds=1), "of Spark's environment, where not given"
    assert found.transaction_timeout == timedelta(minutes=15)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("transaction_timeot", "transaction_timeout"),
        ("max_offsets_per_trigger", "the source has it"),
        ("standby", "start_exactly_once has it"),
        ("partitionby", "an output of files, or the table, has it"),
        ("checkpoint_location", "It takes topic, bootstrap_servers"),
    ],
)
def test_an_option_that_would_go_unheard_is_refused(option, says):
    with pytest.raises(ConfigurationError, match=says):
        settings_of({**TOLD, option: "1"}, "file:/cp")


def test_without_a_prefix_nothing_begins():
    with pytest.raises(ConfigurationError, match="transactional_id_prefix"):
        settings_of({"topic": "out"}, "file:/cp")


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (AVAILABLE_NOW, SECONDS),
        (SECONDS, AVAILABLE_NOW),
        ({"processingTime": "0 milliseconds"}, SECONDS),
        ({"RealTimeTrigger": True}, {"processingTime": "0 seconds"}),
    ],
)
def test_a_query_that_is_watched_by_another_trigger_than_its_own_is_refused(found, told):
    with pytest.raises(ConfigurationError, match="trigger_interval"):
        require_trigger(found, told)


def test_the_same_time_may_be_spelled_in_two_ways():
    require_trigger({"processingTime": "5000 milliseconds"}, SECONDS)
    require_trigger(AVAILABLE_NOW, AVAILABLE_NOW)


class Rows:
    """A batch, as py4j hands it over."""

    def sparkSession(self) -> object:  # noqa: N802 - Spark's name
        return object()


NO_SPARK: Any = SimpleNamespace(sparkContext=None)


@pytest.fixture
def wrapped(monkeypatch):
    """Without Spark."""
    monkeypatch.setattr("pyspark.sql.SparkSession", lambda *_: None)
    monkeypatch.setattr("pyspark.sql.DataFrame", lambda rows, _: rows)


@pytest.mark.usefixtures("wrapped")
def test_a_batch_that_a_drain_leaves_ends_without_an_error():
    def leaves(_rows: object, batch_id: int) -> None:
        raise Drained(f"batch {batch_id} waits for the next start")

    batch = BatchCall(NO_SPARK, leaves)
    batch.admitted.set_result(None)
    assert batch.apply(Rows(), 3) is False


@pytest.mark.usefixtures("wrapped")
def test_a_query_that_is_refused_delivers_nothing():
    delivered = []
    batch = BatchCall(NO_SPARK, lambda _rows, batch_id: delivered.append(batch_id))
    batch.admitted.set_exception(ConfigurationError("another trigger"))
    with pytest.raises(ConfigurationError, match="another trigger"):
        batch.apply(Rows(), 0)
    assert delivered == []


def test_the_jar_was_built_of_the_source_that_is_here():
    """Else: ``scripts/eos-sink-jar``."""
    sources = {path.name: path.read_bytes() for path in JAR.parent.glob("*.java")}
    with zipfile.ZipFile(JAR) as jar:
        built = {name: jar.read(name) for name in jar.namelist() if name.endswith(".java")}
    assert {f"airflow_eos/{name}": source for name, source in sources.items()} == built
    assert sum(source.count(b"\n") for source in sources.values()) <= 250
