"""Each kind on its real server, and a pipeline that delivers to it."""

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


@pytest.fixture
def delivery(
    kafka_broker: EmbeddedKafka,
    servers: Servers,
    host: Host,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> Iterator[Delivery]:
    monkeypatch.syspath_prepend(INSTALLED)
    reached = servers.of(kind_called(kind).servers)
    delivery = Delivery.made(kind, kafka_broker, reached, host, spark, tmp_path)
    with delivery.kind.beside(delivery.at):
        yield delivery
