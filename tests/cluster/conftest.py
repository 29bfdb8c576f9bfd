"""The clusters, and the environment that each of their machines gets with the app."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_eos.local import EmbeddedKafka
from airflow_eos.ops.packaging import build_environment
from tests.cluster.stream import Stream
from tests.support.servers.standalone import EmbeddedStandalone

StreamFactory = Callable[..., Stream]


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of ``airflow-eos package --environment``, built once."""
    path = tmp_path_factory.mktemp("environment") / "environment.tar.gz"
    return build_environment(path, extras=("hdfs",), also=("pandas",)).path


@pytest.fixture(scope="session")
def standalone() -> Iterator[EmbeddedStandalone]:
    with EmbeddedStandalone() as cluster:
        yield cluster


@pytest.fixture
def stream(
    kafka_broker: EmbeddedKafka, tmp_path: Path, record_property: Callable[[str, object], None]
) -> Iterator[StreamFactory]:
    """A function that makes a stream; what it has submitted ends with the test."""
    made: list[Stream] = []

    def make(cluster: str, checkpoint: str | None = None, **more: object) -> Stream:
        where = checkpoint or str(tmp_path / "checkpoint")
        new = Stream(kafka_broker, tmp_path, cluster, where, record_property, **more)  # type: ignore[arg-type]
        made.append(new)
        return new

    yield make
    for each in made:
        each.close()
