"""A compression that nobody knows is refused where it is given, and not by the first task."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_eos.errors import ConfigurationError
from airflow_eos.kafka.client.codecs import NAMES
from airflow_eos.kafka.sink import COMPRESSIONS
from airflow_eos.sinks import DeltaSink, IcebergSink, KafkaSink

SINKS: dict[str, Any] = {
    "kafka": lambda how: KafkaSink("kafka:9092", "out", "orders", compression=how),
    "delta": lambda how: DeltaSink("/data/orders", application_id="orders", compression=how),
    "iceberg": lambda how: IcebergSink(
        "shop.orders", {"type": "in-memory"}, application_id="orders", compression=how
    ),
}


@pytest.mark.parametrize("kind", SINKS)
def test_an_unknown_compression_is_refused_before_a_driver_is_stopped_for_it(kind: str) -> None:
    """It was found by the first task: behind the term, which stops the driver that runs."""
    with pytest.raises(ConfigurationError, match=r"compression.'lz5'.*zstd"):
        SINKS[kind]("lz5")


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize("how", [None, "ZSTD", "none", "brotli"])
def test_what_parquet_takes_is_taken(kind: str, how: Any) -> None:
    assert SINKS[kind](how).compression == how


def test_the_kafka_sink_takes_what_its_writers_know() -> None:
    assert COMPRESSIONS == NAMES
