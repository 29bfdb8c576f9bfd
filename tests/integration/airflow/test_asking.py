"""A recovery that asks a person, in a real Airflow: it waits, and does what was answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer

from airflow_eos.factory.recovery import LEAVE, ORPHANS
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.transactions.identity import OpenTransaction
from airflow_eos.kafka.transactions.listing import list_lookalikes, list_open
from airflow_eos.local import EmbeddedKafka
from demo.airflow import PrivateAirflow
from demo.rest import DagRun
from tests.support.pipeline import wait_until

pytestmark = [pytest.mark.proof, pytest.mark.slow, pytest.mark.timeout(2400)]
PATIENCE_S = 500  # on a busy machine every task takes a while

DAGS = """
from airflow_eos.factory import eos_pipeline

for name in {names!r}:
    _, recovery, _ = eos_pipeline(
        dag_id=name,
        application="never_started.py",
        checkpoint=f"{folder}/{{name}}",
        prefix=name,
        input_topic={topic!r},
        output_topic={topic!r},
        watchdog_schedule=None,
    )
    globals()[recovery.dag_id] = recovery
"""


@dataclass(frozen=True)
class Orphans:
    """Transactions that are open under prefixes of which no checkpoint knows anything."""

    kafka: dict[str, Any]
    producers: list[Producer]  # kept: one that is gone would abort its transaction

    def open(self, prefix: str) -> tuple[OpenTransaction, ...]:
        with ConnectionPool(KafkaSettings.from_librdkafka(self.kafka)) as wire:
            others = (each for each, _whose in list_lookalikes(wire, prefix))
            return (*list_open(wire, prefix), *others)


@pytest.fixture
def output(topic: Callable[..., str]) -> str:
    return topic("asked")


@pytest.fixture
def names(output: str) -> tuple[str, str]:
    return f"{output}-ended", f"{output}-left"


@pytest.fixture
def orphans(kafka_broker: EmbeddedKafka, output: str, names: tuple[str, str]) -> Orphans:
    kafka = {"bootstrap.servers": kafka_broker.bootstrap_servers}
    made = Orphans(kafka, [])
    for name in names:
        told = {"transactional.id": f"{name}-eos-0-0", "transaction.timeout.ms": 900_000}
        producer = Producer(kafka | told)
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(output, value=name)
        assert producer.flush(30) == 0
        made.producers.append(producer)
    return made


@pytest.fixture
def airflow(orphans: Orphans, names, output: str, tmp_path: Path) -> Iterator[PrivateAirflow]:
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "asked.py").write_text(DAGS.format(names=names, folder=tmp_path, topic=output))
    for name in names:
        (tmp_path / name).mkdir()
    with PrivateAirflow(tmp_path / "airflow", dags) as running:
        running.start(
            connections={"kafka_default": {"conn_type": "kafka", "extra": orphans.kafka}},
            settings={},
        )
        running.wait_until_ready({f"{name}_recovery" for name in names})
        yield running


class Person:
    """Who answers what is asked, over Airflow's own API, as its page does."""

    def __init__(self, airflow: PrivateAirflow) -> None:
        token = httpx.get(f"{airflow.url}/auth/token", timeout=60).json()["access_token"]
        self._client = httpx.Client(
            base_url=airflow.url, headers={"Authorization": f"Bearer {token}"}, timeout=60
        )

    def asked(self, run: DagRun) -> dict[str, Any] | None:
        """The question, where one waits for an answer."""
        answer = self._client.get(self._path(run))
        return answer.json() if answer.is_success else None

    def is_asked(self, run: DagRun) -> bool:
        return self.asked(run) is not None

    def answers(self, run: DagRun, *options: str) -> None:
        self._client.patch(
            self._path(run), json={"chosen_options": options, "params_input": {}}
        ).raise_for_status()

    def _path(self, run: DagRun) -> str:
        return f"/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances/ask/-1/hitlDetails"


def is_executed(airflow: PrivateAirflow, run: DagRun, state: str) -> bool:
    return airflow.api.tasks(run)["execute"] == state


def test_it_waits_for_a_person_and_does_what_was_answered(
    airflow: PrivateAirflow, orphans: Orphans, names: tuple[str, str]
) -> None:
    ended, left = names
    person, patience = Person(airflow), {"timeout": PATIENCE_S, "every": 1.0}
    runs = {name: airflow.api.trigger(f"{name}_recovery") for name in names}
    for name, run in runs.items():
        wait_until(partial(person.is_asked, run), what=f"{name} to ask", **patience)
        question = person.asked(run)
        assert question is not None
        assert f"{name}-eos-0-0" in question["body"], "the plan is in the question"
        assert ORPHANS in question["options"]
    time.sleep(3)
    for name, run in runs.items():
        assert airflow.api.tasks(run)["execute"] not in {"running", "success", "failed"}
        assert len(orphans.open(name)) == 1, "nobody has answered, so nothing was done"

    person.answers(runs[ended], ORPHANS)
    person.answers(runs[left], LEAVE)
    for name, state in ((ended, "success"), (left, "failed")):
        executed = partial(is_executed, airflow, runs[name], state)
        wait_until(executed, what=f"{name} to be {state}", **patience)
    assert orphans.open(ended) == (), "the person has said so"
    assert len(orphans.open(left)) == 1, "and here that it is to be left alone"
