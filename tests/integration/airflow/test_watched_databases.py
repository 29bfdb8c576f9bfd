"""The watchdog of a pipeline that writes to a database: what waits there holds locks for ever."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from psycopg.conninfo import conninfo_to_dict

from airflow_eos.checkpoint import CheckpointStore, PipelineIdentity, claim
from airflow_eos.sensors import TransactionTimeoutSensor
from tests.integration.postgres.conftest import World, end_all
from tests.support.servers.postgres import EmbeddedPostgres


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres() as running:
        yield running


@pytest.fixture
def world(server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A table, with an Airflow connection to its database."""
    how = conninfo_to_dict(server.dsn)
    connection = {
        "conn_type": "postgres",
        "host": how.pop("host"),
        "login": how.pop("user"),
        "schema": how.pop("dbname"),
        "extra": how,
    }
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(connection))
    made = World(server)
    yield made
    end_all(made)


@pytest.mark.usefixtures("connections")
def test_what_waits_in_a_database_is_seen_also_where_a_prefix_is_given(
    world: World, tmp_path: Path
) -> None:
    """As the example DAG gives both: the checkpoint's participants, and the app's prefix."""
    participant = world.participant()
    place = f"file://{tmp_path}/checkpoint"
    pipeline = PipelineIdentity(
        id="1" * 32, participants=participant.members, created_at_ms=1, created_by="driver 1"
    )
    claim(CheckpointStore.open(place), pipeline)
    work = world.prepare()

    def sensor(**changes: Any) -> TransactionTimeoutSensor:
        return TransactionTimeoutSensor(
            task_id="timeouts",
            checkpoint_location=place,
            transactional_id_prefix=world.tag,
            max_age=timedelta(milliseconds=1),
            **changes,
        )

    found = sensor(participant_conn_ids={"orders": "shop"}).poke({})
    assert found.is_done
    assert [(each["participant"], each["key"]) for each in found.xcom_value] == [
        ("orders", work.key)
    ]
    with pytest.raises(AirflowFailException, match="give how to reach its database"):
        sensor().poke({})
    participant.commit([work])
    participant.close()
    assert not sensor(participant_conn_ids={"postgres": "shop"}).poke({}).is_done
