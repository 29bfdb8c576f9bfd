"""A real Spark app whose checkpoint is on S3 or on HDFS, and its file manager, raced there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from airflow_eos.core.checkpoint import CheckpointStore, read_heartbeat
from airflow_eos.local import EmbeddedKafka
from airflow_eos.ops.audit.audit import AuditReport, audit
from tests.support.pipeline import KILLED, ROOT, Pipeline, wait_until
from tests.support.stores import Moto, Where, place, s3_options

pytestmark = [pytest.mark.cluster]
ROWS = 8_000  # four batches


@pytest.fixture(params=["moto", "hdfs"])
def where(request, tmp_path: Path) -> Iterator[Where]:
    with place(request.param, tmp_path) as opened:
        yield Where(opened.url.replace("s3://", "s3a://"), opened.options)


def pipeline_at(where: Where, broker: EmbeddedKafka, folder: Path) -> Pipeline:
    made = Pipeline(broker, folder)
    made.settings = {
        "checkpoint": f"{where.url}/{made.name}",
        "jars": ",".join(map(str, where.jars)),
        "spark_conf": where.spark_conf,
        "storage_options": where.options,
    }
    return made


def recover(where: Where, pipeline: Pipeline) -> str:
    """As a person at a shell, once the heartbeat is old enough."""
    options = [f"--storage-option={name}={value}" for name, value in where.options.items()]
    command = [sys.executable, "-m", "airflow_eos", "recover", pipeline.settings["checkpoint"]]
    said: list[str] = []

    def done() -> bool:
        ran = subprocess.run(
            [*command, "--bootstrap-servers", pipeline.bootstrap, *options],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0 or "seems to be alive" in ran.stderr, ran.stdout + ran.stderr
        said.append(ran.stdout)
        return ran.returncode == 0

    wait_until(done, timeout=300, every=2, what="the dead driver's heartbeat to be old")
    return said[-1]


def audited(where: Where, pipeline: Pipeline) -> AuditReport:
    return audit(
        {"bootstrap.servers": pipeline.bootstrap},
        f"{pipeline.name}-in",
        f"{pipeline.name}-out",
        id_expression="value",
        checkpoint=pipeline.settings["checkpoint"],
        storage_options=where.options or None,
    )


def test_an_app_killed_after_its_decision_is_recovered_from_a_shell_and_goes_on(
    where: Where, kafka_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    pipeline = pipeline_at(where, kafka_broker, tmp_path)
    pipeline.feed(ROWS)
    pipeline.run(expect=KILLED, failpoints="decided=kill@2")
    assert len(pipeline.visible()) == 2_000, "it died with its second batch decided"
    recover(where, pipeline)
    assert len(pipeline.visible()) == 4_000, "what was promised is visible while the app is down"
    assert pipeline.open_transactions() == ()

    pipeline.feed(500)
    pipeline.run()
    found = audited(where, pipeline)
    assert (found.rows_in, found.lost, found.duplicated) == (ROWS + 500, 0, 0), found.summary()
    assert found.violations == 0, found.summary()
    pipeline.assert_exactly_once()
    pipeline.assert_ordered()
    beat = read_heartbeat(
        CheckpointStore.open(pipeline.settings["checkpoint"], storage_options=where.options)
    )
    assert beat.phase == "stopped"
    assert beat.interval_ms > 2_000, "it beats as if the store cost nothing"


def test_a_batch_asks_s3_for_no_more_than_the_page_says(
    kafka_broker: EmbeddedKafka, tmp_path: Path, record_property
) -> None:
    """Two runs that differ in nothing but ten batches; what they differ in is what ten cost."""
    with Moto() as server:
        where = Where("s3a://bucket", s3_options(server.endpoint))
        counts = []
        for batches in (5, 15):
            pipeline = pipeline_at(where, kafka_broker, tmp_path)
            pipeline.feed(batches * 500)
            server.asked()
            pipeline.run(max_offsets_per_trigger=500)
            beats = "driver.json", "drain.json"
            counts.append(
                Counter(
                    (who, kind)
                    for who, kind, path in server.asked()
                    if not path.endswith(beats)
                    and (kind, "/eos/drivers/" in path) != ("HEAD", True)  # a beat's, too
                )
            )
            assert len(pipeline.visible()) == batches * 500
    few, many = counts
    per_batch = {f"{who} {kind}": (many[who, kind] - few[who, kind]) / 10 for who, kind in many}
    record_property("requests a batch", str(per_batch))
    sys.stdout.write(f"requests a batch: {per_batch}\n")
    ours = {name: n for name, n in per_batch.items() if name.startswith("eos")}
    assert ours["eos PUT"] <= 2.2, per_batch  # the decision and the cut
    assert sum(ours.values()) <= 15, per_batch


# --- spark logs raced -----------------------------------------------------------------------------
# Spark's own file manager, raced on real stores: who keeps two drivers from planning one batch.
#
# `pytest -m cluster -rP tests/integration/checkpoint/test_apps_on_stores.py` prints what it
# found.


ROUNDS = 60
RACE = f"""
import json, sys
from dataclasses import asdict
from pyspark.sql import SparkSession
from structlog.testing import capture_logs
from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.delivery.spark_session import race_sparks_logs, warn_where_two_can_plan
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
