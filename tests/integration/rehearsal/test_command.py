"""``airflow-eos rehearse`` beside the running pipeline, as a user has both."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from airflow_eos.cli.app import app
from airflow_eos.core.checkpoint import CheckpointStore, read_state, request_drain
from airflow_eos.local import EmbeddedKafka, spark_jars
from tests.support.jvm import spark_submit_opts
from tests.support.pipeline import Pipeline

pytestmark = pytest.mark.proof

NEW = Path(__file__).with_name("copying.py")


@pytest.fixture
def pipeline(kafka_broker: EmbeddedKafka, tmp_path: Path, monkeypatch) -> Pipeline:
    jars = ",".join(map(str, spark_jars()))
    for name, value in {
        "PYSPARK_SUBMIT_ARGS": f"--master local[2] --jars {jars} pyspark-shell",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": spark_submit_opts(),
        "LAKE_PASSWORD": "hunter-two",
    }.items():
        monkeypatch.setenv(name, value)
    return Pipeline(kafka_broker, tmp_path)


def arguments(pipeline: Pipeline) -> list[str]:
    given = {
        "--bootstrap-servers": pipeline.bootstrap,
        "--input-topic": f"{pipeline.name}-in",
        "--output-topic": f"{pipeline.name}-out",
        "--prefix": pipeline.name,
        "--max-offsets-per-trigger": "100",
        "--trigger": "200 milliseconds",
    }
    return [word for pair in given.items() for word in pair]


def rehearse(pipeline: Pipeline, *more: str) -> tuple[int, dict[str, Any]]:
    asked = ["rehearse", pipeline.checkpoint, "--app", str(NEW), "--batches", "3", "--json"]
    asked += ["--submit", sys.executable, "--", *arguments(pipeline), *more]
    answer = CliRunner().invoke(app, asked)
    assert answer.exception is None or isinstance(answer.exception, SystemExit), answer.exception
    return answer.exit_code, json.loads(answer.stdout)


def test_two_versions_are_rehearsed_while_the_pipeline_runs_and_it_delivers_each_row_once(
    pipeline: Pipeline,
) -> None:
    store = CheckpointStore.open(pipeline.checkpoint)
    old = subprocess.Popen(
        [sys.executable, str(NEW), "--checkpoint", pipeline.checkpoint, *arguments(pipeline)],
        env=dict(os.environ),
        start_new_session=True,
    )
    try:
        pipeline.feed(500)
        until = time.monotonic() + 300
        while len(pipeline.visible()) < 500:
            assert time.monotonic() < until
            time.sleep(0.5)
        status, told = rehearse(pipeline)
        assert (status, told["verdict"]) == (0, "same"), told
        assert len(told["compared"]) == 3
        pipeline.feed(100)
        status, told = rehearse(pipeline, "--suffix", "!")
        assert (status, told["verdict"]) == (1, "differs")
        example = told["compared"][0]["difference"]["examples"][0]
        assert example["rehearsed"] == f"{example['delivered']}!"
        assert "hunter-two" not in json.dumps(told)
        while len(pipeline.visible()) < 600:
            assert time.monotonic() < until + 200
            time.sleep(0.5)
        request_drain(store, requested_by="a test", reason="it is done")
        assert old.wait(120) == 0
    finally:
        if old.poll() is None:
            os.killpg(old.pid, signal.SIGKILL)
            old.wait()
    assert read_state(store).in_flight is None
    assert sorted(pipeline.visible()) == sorted(pipeline.expected)
