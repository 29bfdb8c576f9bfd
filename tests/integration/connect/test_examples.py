"""The example of a declarative pipeline, as Airflow's operator runs it, and of a Connect client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from airflow_eos.core.checkpoint import CheckpointStore, DecisionLog, read_heartbeat
from tests.integration.connect.conftest import CLEAN, ORDERS
from tests.support.connect_server import ROOT, connect_server, die_at
from tests.support.pipeline import wait_until
from tests.support.topics import produce, read_topic

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]

APPS = ROOT / "spark_apps"


def run(command: list[str], remote: str | None = None) -> subprocess.Popen[str]:
    told = {} if remote is None else {"SPARK_REMOTE": remote}
    return subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, **told},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said[-6000:]
    return said


def pipeline(spec: Path, remote: str) -> subprocess.Popen[str]:
    return run(["-m", "pyspark.pipelines.cli", "run", "--spec", str(spec)], remote)


def test_a_pipeline_whose_driver_dies_is_tried_again_in_the_same_run(kafka, spec, tmp_path):
    with connect_server(tmp_path / "server") as server:
        die_at(server.folder, "decided=kill")
        said = ended(pipeline(spec, server.remote))
    assert (server.folder / "decided.hit").exists(), said
    assert Counter(read_topic(kafka, "orders.clean")) == CLEAN
    [checkpoint] = (tmp_path / "storage").glob("_checkpoints/orders_clean/*/0")
    store = CheckpointStore.open(str(checkpoint))
    assert len(DecisionLog(store).of_batch(0)) > 1
    assert read_heartbeat(store).end == "finished"


@pytest.mark.parametrize(
    "place", ["sealed", "before-prepare", "prepared", "decided", "settled-some", "settled"]
)
def test_a_pipeline_whose_jvm_dies_goes_on_in_the_next_run(kafka, spec, tmp_path, place):
    with connect_server(tmp_path / "first") as first:
        die_at(first.folder, f"{place}=stop")
        client = pipeline(spec, first.remote)
        hit = first.folder / f"{place}.hit"
        wait_until(lambda: hit.exists() or client.poll() is not None, what="the driver to sleep")
        assert client.poll() is None, ended(client)
        [sleeper] = first.drivers()
        first.kill_jvm()
        client.kill()
        client.wait(60)
        sleeper.kill()
    with connect_server(tmp_path / "second") as second:
        ended(pipeline(spec, second.remote))
        ended(pipeline(spec, second.remote))
    assert Counter(read_topic(kafka, "orders.clean")) == CLEAN


def test_a_connect_client_delivers_each_order_once(kafka, tmp_path):
    checkpoint = str(tmp_path / "checkpoint")
    with connect_server(tmp_path / "server") as server:
        told = [str(APPS / "connect_orders.py"), server.remote, kafka, checkpoint, "available-now"]
        die_at(server.folder, "settled=kill")
        failed = run(told)
        failed.communicate(timeout=300)
        assert failed.returncode != 0
        ended(run(told))
    assert Counter(read_topic(kafka, "orders.clean")) == CLEAN


def test_a_client_that_dies_leaves_a_query_that_delivers(kafka, tmp_path):
    more = [(f"k{i}", json.dumps({"customer_id": "c9", "order": i})) for i in range(900, 950)]
    with connect_server(tmp_path / "server") as server:
        die_at(server.folder, "")
        app = str(APPS / "connect_orders.py")
        client = run([app, server.remote, kafka, str(tmp_path / "checkpoint")])
        wait_until(lambda: len(read_topic(kafka, "orders.clean")) == len(ORDERS), what="the rows")
        client.kill()
        client.wait(60)
        produce(kafka, "orders", more)
        total = len(ORDERS) + len(more)
        wait_until(lambda: len(read_topic(kafka, "orders.clean")) >= total, what="what came later")
        [driver] = server.drivers()
        assert driver.is_running()
    found = Counter(read_topic(kafka, "orders.clean"))
    assert found == CLEAN + Counter(("c9", value) for _, value in more)
