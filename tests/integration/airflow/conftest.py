"""Airflow's connections to the embedded broker and to a local Spark."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.support.jvm import spark_submit_opts

ROOT = Path(__file__).parents[3]


@pytest.fixture
def connections(kafka_broker, monkeypatch, tmp_path) -> None:
    kafka = {"bootstrap.servers": kafka_broker.bootstrap_servers}
    for name, connection in (
        ("KAFKA", {"conn_type": "kafka", "extra": kafka}),
        ("SPARK", {"conn_type": "spark", "host": "local[2]"}),
    ):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}_DEFAULT", json.dumps(connection))
    # spark-submit, and the python that it finds, are those of this environment
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", spark_submit_opts())
    # the package reaches driver and executors only as it is shipped
    monkeypatch.chdir(tmp_path)
