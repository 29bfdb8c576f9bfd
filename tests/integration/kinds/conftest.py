"""Each kind on its real server, a pipeline that delivers to it, and places to die at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_eos.local import EmbeddedKafka
from tests.integration.kinds.delivery import Delivery
from tests.support.host import Host
from tests.support.kinds import kind_called
from tests.support.kinds.servers import Servers
from tests.support.kinds.theirs import INSTALLED


@pytest.fixture(scope="session")
def servers(kafka_broker: EmbeddedKafka) -> Iterator[Servers]:
    with Servers(kafka_broker) as running:
        yield running


@pytest.fixture
def delivery(
    kafka_broker: EmbeddedKafka,
    servers: Servers,
    host: Host,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> Delivery:
    monkeypatch.syspath_prepend(INSTALLED)
    reached = servers.of(kind_called(kind).servers)
    return Delivery.made(kind, kafka_broker, reached, host, spark, tmp_path)
