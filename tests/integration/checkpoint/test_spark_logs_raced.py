"""Spark's own file manager, raced on real stores: who keeps two drivers from planning one batch.

`pytest -m cluster -rP tests/integration/checkpoint/test_spark_logs_raced.py` prints what it found.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.support.pipeline import ROOT
from tests.support.stores import Where, place

pytestmark = [pytest.mark.cluster]
ROUNDS = 60
RACE = f"""
import json, sys
from dataclasses import asdict
from pyspark.sql import SparkSession
from structlog.testing import capture_logs
from airflow_eos.checkpoint import CheckpointStore
from airflow_eos.delivery.spark_session import race_sparks_logs, warn_where_two_can_plan
location, options, conf = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
spark = SparkSession.builder.master("local[1]").config(map=conf).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
store = CheckpointStore.open(location, storage_options=options or None)
with capture_logs() as logs:
    warn_where_two_can_plan(spark, store, "at_least_once")
raced = asdict(race_sparks_logs(spark, store, rounds={ROUNDS}))
objects = store._listing("eos")["objects"]
left = [str(each["path"]) for each in objects if not str(each["path"]).endswith(("eos", ".crc"))]
said = {{"raced": raced, "logs": [each["event"] for each in logs], "left": left}}
print(json.dumps(said))
spark.stop()
"""


def raced(where: Where, folder: Path) -> dict[str, object]:
    """In a process of its own, whose JVM has the store's jars."""
    conf = {
        "spark.jars": ",".join(map(str, where.jars)),
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        **where.spark_conf,
    }
    encode = msgspec.json.encode
    done = subprocess.run(
        [
            *(sys.executable, "-c", RACE, f"{where.url}/raced"),
            *(encode(where.options).decode(), encode(conf).decode()),
        ],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, object] = msgspec.json.decode(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("kind", ["local", "moto", "hdfs"])
def test_who_lets_two_win_is_warned_of(kind: str, tmp_path: Path) -> None:
    with place(kind, tmp_path) as opened:
        where = Where(opened.url.replace("s3://", "s3a://"), opened.options)
        found = raced(where, tmp_path)
    sys.stdout.write(f"{kind}: {found}\n")
    race = found["raced"]
    assert isinstance(race, dict)
    wrong = race["several"] + race["torn"]
    assert race["rounds"] == ROUNDS
    assert found["left"] == [], "probes were left in the checkpoint"
    warned = found["logs"] == ["sparks_own_logs_not_exclusive"]
    if kind == "hdfs":
        assert (wrong, found["logs"]) == (0, [])
    elif kind == "moto":
        assert wrong > ROUNDS / 4
        assert warned
    else:
        assert warned, "a disk passes most rounds, and is known all the same"
