"""A real Airflow, left to itself: its schedule notices a dead app, recovers and resumes it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_eos.local import EmbeddedKafka, spark_jars
from airflow_eos.recovery import AuditReport, audit
from airflow_eos.sinks.source import tuned_spark_conf
from demo.airflow import PrivateAirflow
from demo.orders import ORDER_ID_HEADER, write_orders
from demo.rest import DagRun
from tests.support.jvm import spark_submit_opts
from tests.support.pipeline import ROOT, wait_until

pytestmark = [pytest.mark.proof, pytest.mark.slow, pytest.mark.timeout(1200)]

ROWS = 600
DAGS = {"eos_orders_etl", "eos_recovery", "eos_watchdog"}
ORDER_ID = f"headers.{ORDER_ID_HEADER}"
PATIENCE_S = 500  # on a busy machine every task takes a while


@dataclass(frozen=True)
class Etl:
    """The example pipeline, with topics and a folder of its own."""

    broker: EmbeddedKafka
    input: str
    output: str
    rejected: str
    folder: Path

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def was_killed(self) -> bool:
        return (self.folder / "decided.hit").exists()

    def settings(self) -> dict[str, Any]:
        """What differs from the defaults of the example DAGs."""
        return {
            "checkpoint": str(self.checkpoint),
            "prefix": self.input,
            "input_topic": self.input,
            "output_topic": self.output,
            "dead_letter_topic": self.rejected,
            "order_id": ORDER_ID,
            "application": str(ROOT / "spark_apps" / "orders_etl.py"),
            "jars": ",".join(str(jar) for jar in spark_jars()),
            "conf": {
                **tuned_spark_conf(),
                "spark.ui.enabled": "false",
                "spark.driver.host": "127.0.0.1",
            },
            "env": {
                "EOS_FAILPOINTS": "decided=kill@2",
                "EOS_FAILPOINTS_DIR": str(self.folder),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_SUBMIT_OPTS": spark_submit_opts(),
            },
            "trigger": "available-now",
            "max_offsets_per_trigger": ROWS // 3,
            # The task would bring the app back before the watchdog looks.
            "max_restarts": 0,
            "retries": 0,
            "stall_after": 5,
            "watchdog_schedule": "* * * * *",
        }

    def audit(self) -> AuditReport:
        return audit(
            {"bootstrap.servers": self.broker.bootstrap_servers},
            self.input,
            self.output,
            id_expression=ORDER_ID,
            dead_letter_topic=self.rejected,
            checkpoint=str(self.checkpoint),
        )


@pytest.fixture
def etl(kafka_broker: EmbeddedKafka, topic: Callable[..., str], tmp_path: Path) -> Etl:
    made = Etl(kafka_broker, topic("orders", 2), topic("clean", 2), topic("rejected"), tmp_path)
    made.checkpoint.mkdir()
    write_orders(kafka_broker.bootstrap_servers, made.input, ROWS, lambda _: None)
    return made


@pytest.fixture
def airflow(etl: Etl) -> Iterator[PrivateAirflow]:
    cores = min(2, os.cpu_count() or 1)
    kafka = {"bootstrap.servers": etl.broker.bootstrap_servers}
    with PrivateAirflow(etl.folder / "airflow", ROOT / "dags") as running:
        running.start(
            connections={
                "kafka_default": {"conn_type": "kafka", "extra": kafka},
                "spark_default": {"conn_type": "spark", "host": f"local[{cores}]"},
            },
            settings={"EOS_ORDERS_ETL": etl.settings()},
        )
        running.wait_until_ready(DAGS)
        yield running


def test_the_watchdogs_schedule_brings_a_killed_app_back(etl: Etl, airflow: PrivateAirflow) -> None:
    def runs(dag_id: str, kind: str) -> list[DagRun]:
        return [run for run in airflow.api.runs(dag_id) if run.run_id.startswith(f"{kind}__")]

    def states(dag_id: str, kind: str) -> set[str]:
        return {run.state for run in runs(dag_id, kind)}

    airflow.api.trigger("eos_orders_etl")
    wait_until(etl.was_killed, timeout=PATIENCE_S, what="the app to be killed in a batch")
    wait_until(
        lambda: "success" in states("eos_orders_etl", "resume"),
        timeout=PATIENCE_S,
        every=1,
        what="the watchdog to see it, and the resumed app to read everything",
    )

    assert states("eos_orders_etl", "manual") == {"failed"}, "the app that was killed"
    looks = runs("eos_watchdog", "scheduled")
    assert {tuple(airflow.api.tasks(run)) for run in looks} == {("look",)}
    assert "failed" in {run.state for run in looks}, "a stall turns the watchdog's run red"
    assert "success" in states("eos_recovery", "watchdog")
    report = etl.audit()
    assert (report.ok, report.rows_in, report.open_rows) == (True, ROWS, 0)
