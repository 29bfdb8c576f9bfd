"""The worked example: counts in Spark's state go on from the checkpoint after a crash."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_eos.local import spark_jars
from tests.support.jvm import spark_submit_opts
from tests.support.topics import produce, read_topic

APP_TIMEOUT_S = 280  # four runs are less than the test's own timeout, which would orphan the app
APP = Path(__file__).parents[3] / "spark_apps" / "page_views.py"


@dataclass(frozen=True)
class PageViews:
    """The app with topics and a checkpoint of its own."""

    bootstrap: str
    views: str
    counts: str
    checkpoint: Path

    def run(self, failpoints: str = "") -> int:
        """Run it until it has read everything; returns its exit status."""
        arguments = {
            "--bootstrap-servers": self.bootstrap,
            "--checkpoint": str(self.checkpoint),
            "--input-topic": self.views,
            "--output-topic": self.counts,
            "--prefix": self.views,
            "--trigger": "available-now",
            "--state-partitions": "2",
        }
        environment = {
            **os.environ,
            "PYTHONPATH": str(APP.parents[1]),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": (
                f"--master local[2] --jars {','.join(str(jar) for jar in spark_jars())} "
                "--conf spark.ui.enabled=false pyspark-shell"
            ),
            "SPARK_SUBMIT_OPTS": spark_submit_opts(),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "EOS_FAILPOINTS": failpoints,
        }
        command = [sys.executable, str(APP), *(x for pair in arguments.items() for x in pair)]
        return subprocess.run(command, env=environment, timeout=APP_TIMEOUT_S).returncode


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_after_two_crashes_in_a_batch_the_count_is_20005_and_not_20008(
    kafka_broker, topic, tmp_path
):
    app = PageViews(
        kafka_broker.bootstrap_servers, topic("views", 2), topic("counts", 2), tmp_path / "ckpt"
    )
    view = ("user", json.dumps({"app": "shop"}))

    produce(app.bootstrap, app.views, [view] * 20_000)
    assert app.run() == 0
    produce(app.bootstrap, app.views, [view] * 5)
    # it dies in the batch that counts the five, and once more when it counts them again
    assert app.run(failpoints="prepared=kill") != 0
    assert app.run(failpoints="decided=kill") != 0
    assert app.run() == 0

    seen = [json.loads(value)["views"] for _, value in read_topic(app.bootstrap, app.counts)]
    assert seen == [20_000, 20_005]
