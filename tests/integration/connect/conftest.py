"""One Connect server for all tests of a process, in whose JVM drivers come and die."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_eos.local import EmbeddedKafka
from tests.integration.connect.remote import Remote
from tests.support.connect_server import ROOT, ConnectServer, connect_server
from tests.support.topics import produce

ORDERS = [(f"k{i}", json.dumps({"customer_id": f"c{i % 9}", "order": i})) for i in range(900)]
CLEAN = Counter((f"c{i % 9}", value) for i, (_, value) in enumerate(ORDERS))
"""What the example of a declarative pipeline makes of them."""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    with connect_server(tmp_path_factory.mktemp("connect")) as running:
        yield running


@pytest.fixture
def remote(kafka_broker, tmp_path: Path) -> Remote:
    """A pipeline whose query a client of the server starts."""
    made = Remote(kafka_broker, tmp_path)
    made.feed(1500)
    return made


@pytest.fixture
def kafka() -> Iterator[str]:
    """A broker of its own: the names of the topics are the example's."""
    with EmbeddedKafka() as broker:
        for topic in ("orders", "orders.clean"):
            broker.create_topic(topic, 2)
        produce(broker.bootstrap_servers, "orders", ORDERS)
        yield broker.bootstrap_servers


@pytest.fixture
def spec(kafka: str, tmp_path: Path) -> Path:
    """The project of the example of a declarative pipeline."""
    project = tmp_path / "project"
    project.mkdir()
    app = ROOT / "spark_apps" / "pipeline_orders.py"
    (project / app.name).write_text(app.read_text())
    path = project / "spark-pipeline.yml"
    path.write_text(
        f"name: orders\nstorage: file://{tmp_path}/storage\n"
        f"libraries:\n  - glob:\n      include: {app.name}\n"
        f"configuration:\n  orders.kafka: {kafka}\n"
    )
    return path
