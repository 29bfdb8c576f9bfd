"""The example DAG of a declarative pipeline in a real Airflow: a run fails, and is recovered."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_eos.local.broker import free_ports
from demo.airflow import PrivateAirflow
from demo.rest import DagRun
from tests.integration.connect.conftest import CLEAN
from tests.support.connect_server import ROOT, connect_server, die_at
from tests.support.pipeline import wait_until
from tests.support.topics import produce, read_topic

pytestmark = [pytest.mark.proof, pytest.mark.slow, pytest.mark.timeout(1200)]

DAG = "eos_pipeline_orders"
PATIENCE_S = 400


@pytest.fixture
def port() -> int:
    [found] = free_ports(1)
    return found


@pytest.fixture
def airflow(kafka: str, spec: Path, port: int, tmp_path: Path) -> Iterator[PrivateAirflow]:
    """With the DAG as it is, but for its places, its schedule and its retries."""
    dags = tmp_path / "dags"
    dags.mkdir()
    text = (ROOT / "dags" / "eos_pipeline_orders.py").read_text()
    for old, new in (
        ("/opt/pipelines/orders/spark-pipeline.yml", str(spec)),
        ("s3://lake/pipelines/orders", f"{tmp_path}/storage"),
        ('"@hourly"', "None"),
        ("retries=3", "retries=0"),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (dags / "orders.py").write_text(text)
    with PrivateAirflow(tmp_path / "airflow", dags) as running:
        running.start(
            connections={
                "kafka_default": {"conn_type": "kafka", "extra": {"bootstrap.servers": kafka}},
                "spark_connect": {"conn_type": "spark_connect", "host": "127.0.0.1", "port": port},
            },
            settings={},
        )
        running.wait_until_ready({DAG})
        yield running


def ended(airflow: PrivateAirflow, run: DagRun) -> dict[str, str]:
    """The states of its tasks, and of the run itself."""

    def found() -> DagRun:
        [this] = [each for each in airflow.api.runs(DAG) if each.run_id == run.run_id]
        return this

    wait_until(lambda: found().ended, timeout=PATIENCE_S, every=1, what="the run to end")
    return {**airflow.api.tasks(run), "the run": found().state}


def test_a_run_that_fails_for_good_is_recovered_and_the_next_one_goes_on(
    airflow, kafka, port, tmp_path
):
    with connect_server(tmp_path / "server", port) as server:
        assert server.remote
        # Each of its drivers: the first once it has decided, the others as they begin to settle.
        (server.folder / "failpoints").write_text(
            "export EOS_FAILPOINTS=decided=kill,settled-some=kill\n"
        )
        died = airflow.api.trigger(DAG)
        assert ended(airflow, died) == {"run": "failed", "recover": "success", "the run": "failed"}
        found = Counter(read_topic(kafka, "orders.clean"))
        assert found == CLEAN, "recovery shows what was promised"
        more = [(f"k{i}", json.dumps({"customer_id": "c9", "order": i})) for i in range(900, 950)]
        produce(kafka, "orders", more)
        die_at(server.folder, "")
        again = airflow.api.trigger(DAG)
        assert set(ended(airflow, again).values()) == {"success"}
    found = Counter(read_topic(kafka, "orders.clean"))
    assert found == CLEAN + Counter(("c9", value) for _, value in more)
