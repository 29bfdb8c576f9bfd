"""SparkStreamingOperator with a real Spark and a real broker, killed and drained."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from airflow_eos.core.checkpoint import CheckpointStore, read_heartbeat
from airflow_eos.core.checkpoint.progress import read_state
from airflow_eos.core.delivery.policy import RestartStrategy
from airflow_eos.errors import AppFailedError, AppStoppedError
from airflow_eos.local import EmbeddedKafka, spark_jars
from airflow_eos.operators import AuditOperator, SparkStreamingOperator
from airflow_eos.sensors import CheckpointProgressSensor
from airflow_eos.sinks import CheckpointPolicy, ExponentialDelay, FailureRate, FixedDelay
from tests.support.pipeline import ROOT, wait_until
from tests.support.topics import produce

pytestmark = [pytest.mark.proof, pytest.mark.usefixtures("connections"), pytest.mark.slow]
ROWS = 600


def order(number: int) -> tuple[str, str]:
    customer = f"c{number % 7}"
    items = [{"sku": "s", "quantity": 1 + number % 3, "unit_price": 2.5}]
    text = json.dumps(
        {
            "order_id": f"o{number}",
            "customer_id": customer,
            "placed_at": "2026-01-01T00:00:00Z",
            "country": "DE",
            "currency": "EUR",
            "email": "a@b.example",
            "items": items,
        }
    )
    return customer, text


class Etl:
    """The example app under the operator, with topics and a checkpoint of its own."""

    def __init__(self, broker, topic: Callable[..., str], folder: Path) -> None:
        self.input, self.output = topic("orders", 2), topic("clean", 2)
        self.rejected = topic("rejected")
        self.checkpoint = str(folder / "checkpoint")
        produce(broker.bootstrap_servers, self.input, [order(number) for number in range(ROWS)])

    def operator(self, *arguments: str, **other) -> SparkStreamingOperator:
        return SparkStreamingOperator(
            task_id="etl",
            application=str(ROOT / "spark_apps" / "orders_etl.py"),
            checkpoint_location=self.checkpoint,
            transactional_id_prefix=self.input,
            application_args=[
                *("--input-topic", self.input, "--output-topic", self.output),
                *("--dead-letter-topic", self.rejected, "--max-offsets-per-trigger", "200"),
                *arguments,
            ],
            jars=",".join(str(jar) for jar in spark_jars()),
            conf={"spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"},
            **{"policy": CheckpointPolicy(restart=FixedDelay(3, timedelta(seconds=1))), **other},
        )

    def audit(self) -> Any:
        return AuditOperator(
            task_id="audit",
            input_topic=self.input,
            output_topic=self.output,
            id_expression="value.order_id",
            dead_letter_topic=self.rejected,
            checkpoint_location=self.checkpoint,
        ).execute({})


@pytest.fixture
def etl(kafka_broker, topic, tmp_path) -> Etl:
    return Etl(kafka_broker, topic, tmp_path)


def test_killed_after_its_decision_it_is_recovered_restarted_and_exact(etl, tmp_path):
    failpoints = {"EOS_FAILPOINTS": "decided=kill@2", "EOS_FAILPOINTS_DIR": str(tmp_path)}
    result = etl.operator("--trigger", "available-now", env_vars=failpoints).execute({})
    assert (tmp_path / "decided.hit").exists()
    assert result["restarts"] == 1
    assert result["batch_id"] >= 2
    report = etl.audit()
    assert (report["ok"], report["rows_in"], report["rows_out"][etl.output]) == (True, ROWS, ROWS)


@pytest.fixture
def guarded() -> Iterator[EmbeddedKafka]:
    """A broker with logins, whose passwords can be changed."""
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    properties = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.sasl.scram-sha-256.sasl.jaas.config": scram,
    }
    with EmbeddedKafka(properties, listeners={"SASL": "SASL_PLAINTEXT"}) as running:
        yield running


def test_a_password_that_is_changed_under_a_try_costs_none_of_its_retries(
    guarded, tmp_path, monkeypatch
):
    def change(password: str) -> None:
        """In Kafka, and in the connection of Airflow."""
        admin = AdminClient({"bootstrap.servers": guarded.bootstrap_servers})
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        user = UserScramCredentialUpsertion("etl", info, password.encode())
        for done in admin.alter_user_scram_credentials([user]).values():
            done.result(60)
        kafka = {
            "bootstrap.servers": guarded.addresses("SASL"),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "etl",
            "sasl.password": password,
        }
        connection = json.dumps({"conn_type": "kafka", "extra": kafka})
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", connection)

    def meanwhile() -> None:
        wait_until((tmp_path / "decided.hit").exists, what="the driver to decide, and to sleep")
        change("of-now")
        beat = read_heartbeat(CheckpointStore.open(mine.checkpoint))
        assert beat is not None
        os.kill(beat.pid, signal.SIGKILL)

    def topic(name: str, partitions: int = 1) -> str:
        return str(guarded.create_topic(name, partitions))

    change("of-before")
    mine = Etl(guarded, topic, tmp_path)
    failpoints = {"EOS_FAILPOINTS": "decided=stop@2", "EOS_FAILPOINTS_DIR": str(tmp_path)}
    person = threading.Thread(target=meanwhile)
    person.start()
    try:
        result = mine.operator("--trigger", "available-now", env_vars=failpoints).execute({})
    finally:
        person.join(300)
    assert result["restarts"] == 1
    report = mine.audit()
    assert (report["ok"], report["rows_in"], report["rows_out"][mine.output]) == (True, ROWS, ROWS)


def test_a_failure_too_many_fails_the_try_and_the_next_one_waits_longer_each_time(
    etl, tmp_path, caplog
):
    """Two strategies of Flink's, each with an app that is killed twice."""

    def tried(strategy: RestartStrategy, *places: str) -> Any:
        failpoints = ",".join(f"{place}=kill" for place in places)
        task = etl.operator(
            *("--trigger", "available-now"),
            env_vars={"EOS_FAILPOINTS": failpoints, "EOS_FAILPOINTS_DIR": str(tmp_path)},
            policy=CheckpointPolicy(restart=strategy),
        )
        caplog.clear()
        return task.execute({})

    def restarts() -> list[str]:
        return re.findall(r"Restart (\d+ in \S+ s):", caplog.text)

    with pytest.raises(AppFailedError, match="2"):
        tried(FailureRate(failures=1, pause=timedelta(seconds=2)), "prepared", "decided")
    assert restarts() == ["1 in 2 s"]
    assert (tmp_path / "decided.hit").exists()

    waiting = ExponentialDelay(initial=timedelta(seconds=1), multiplier=3, attempts=2)
    assert tried(waiting, "settled", "before-prepare")["restarts"] == 2
    assert restarts() == ["1 in 1 s", "2 in 3 s"]
    report = etl.audit()
    assert (report["ok"], report["rows_in"], report["rows_out"][etl.output]) == (True, ROWS, ROWS)


def test_on_kill_drains_a_running_app_and_nothing_else_may_start_beside_it(etl):
    task = etl.operator(drain_timeout=timedelta(minutes=10))
    store = CheckpointStore.open(etl.checkpoint)
    refused: list[str] = []
    health: list[str] = []

    def idle() -> bool:
        state = read_state(store)
        read = [
            sum(ends.values()) for source in state.sources for ends in (source.end or {}).values()
        ]
        return state.in_flight is None and sum(read) == ROWS

    def while_it_runs() -> None:
        try:
            wait_until(idle, timeout=300, what="all rows to be read")
            with pytest.raises(AirflowFailException) as alive:
                etl.operator().execute({})
            refused.append(str(alive.value))
            sensor = CheckpointProgressSensor(
                task_id="idle",
                checkpoint_location=etl.checkpoint,
                max_age=timedelta(milliseconds=1),
            )
            health.append(sensor.execute({})["health"])
        finally:
            task.on_kill()

    watcher = threading.Thread(target=while_it_runs)
    watcher.start()
    with pytest.raises(AppStoppedError):
        task.execute({})
    watcher.join()
    assert "already running" in refused[0]
    assert health == ["idle"]
    heartbeat = read_heartbeat(store)
    assert heartbeat is not None
    assert heartbeat.phase == "stopped"
    assert etl.audit()["ok"]
