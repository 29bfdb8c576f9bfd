"""An example app with a checkpoint of its own, and the two ways to play it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_eos.local import EmbeddedKafka
from tests.support.examples import Example, connection_id
from tests.support.host import Host

Play = Callable[..., None]


@pytest.fixture
def example(kafka_broker: EmbeddedKafka, host: Host, tmp_path: Path) -> Callable[..., Example]:
    """``example(app, *arguments, outputs=…, reach=…)``."""

    def made(app: str, *arguments: str, **how: Any) -> Example:
        return Example(app, kafka_broker, tmp_path, host, arguments, **how)

    return made


@pytest.fixture(params=["app", pytest.param("dag", marks=pytest.mark.examples)])
def play(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Play:
    """``play(example, *places)``: killed at each place once, then run until all is read.

    ``app``: the app alone, in the JVM of the host. ``dag``: its DAG's task brings it back each
    time, in a JVM of its own, as spark-submit starts it.
    """

    def app(example: Example, *places: str) -> None:
        for place in places:
            example.killed(place)
        example.run()

    def dag(example: Example, *places: str) -> None:
        for name, address in example.reach.items():
            monkeypatch.setenv(
                f"AIRFLOW_CONN_{connection_id(name).upper()}", json.dumps(connection(address))
            )
        assert example.task(*places).execute({})["restarts"] == len(places)

    if request.param == "app":
        return app
    request.getfixturevalue("connections")
    return dag


def connection(address: str) -> dict[str, Any]:
    """Airflow's, to a server of ours."""
    if address.startswith("redis://"):
        parts = urlsplit(address)
        return {"conn_type": "redis", "host": parts.hostname, "port": parts.port}
    return {"conn_type": "postgres", "extra": conninfo_to_dict(address)}
