"""YARN and HDFS: the driver is in a container of the cluster, and so is all that it knows.

Cluster mode; the checkpoint is on HDFS, the connection to Kafka comes as a file of ``--files``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_eos.core.checkpoint import CheckpointStore, read_heartbeat
from airflow_eos.local import spark_jars
from tests.cluster.by_dag import submitted_by_dag, without_pythonpath
from tests.cluster.by_operator import operator, struck
from tests.cluster.conftest import StreamFactory
from tests.cluster.stream import APP, PATIENCE_S, Stream, stopped
from tests.support.jvm import SHORT_LIVED
from tests.support.pipeline import wait_until
from tests.support.servers.hdfs import EmbeddedHdfs
from tests.support.servers.standalone import spark_home
from tests.support.servers.yarn import EmbeddedYarn

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400)]

CLUSTER = "YARN, two nodes, cluster mode; checkpoint on HDFS"
SPARK = {"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}
PYTHON = "./environment/bin/python"
SMALL = {
    "spark.submit.deployMode": "cluster",
    "spark.yarn.jars": f"local:{spark_home() / 'jars'}/*",  # as on a machine that has its Spark
    "spark.yarn.maxAppAttempts": "1",
    "spark.driver.memory": "512m",
    "spark.driver.memoryOverhead": "768m",  # Python's and Arrow's, which YARN counts
    "spark.executor.memory": "512m",
    "spark.executor.memoryOverhead": "512m",
    "spark.executor.instances": "2",
    "spark.executor.cores": "1",
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.yarn.appMasterEnv.PYSPARK_PYTHON": PYTHON,
    "spark.executorEnv.PYSPARK_PYTHON": PYTHON,
    "spark.pyspark.driver.python": PYTHON,
    "spark.pyspark.python": PYTHON,
}


@pytest.fixture(scope="module")
def hdfs() -> Iterator[EmbeddedHdfs]:
    with EmbeddedHdfs() as files:
        yield files


@pytest.fixture(scope="module")
def yarn(hdfs: EmbeddedHdfs) -> Iterator[EmbeddedYarn]:
    with EmbeddedYarn(hdfs, memory_mb=2560) as cluster:
        yield cluster


def test_the_driver_and_then_an_executor_are_killed_with_their_containers(
    yarn: EmbeddedYarn, hdfs: EmbeddedHdfs, stream: StreamFactory, environment: Path, tmp_path: Path
) -> None:
    one = stream(CLUSTER, f"{hdfs.url}/checkpoints/one")
    one.feed(900)
    first = submit(
        one, yarn, environment, tmp_path, driver="decided=stop@2", trigger="200 milliseconds"
    )
    kill_container(stopped_on(yarn, one, lambda: first.poll() is None))
    one.recover()
    one.feed(300)
    second = submit(
        one, yarn, environment, tmp_path, task="task-prepared=stop@2", trigger="available-now"
    )
    kill_container(stopped_on(yarn, one, lambda: second.poll() is None))
    assert second.wait(PATIENCE_S) == 0, one.said()
    one.judge("the driver's container at `decided`, then an executor's at `task-prepared`")
    beat = read_heartbeat(CheckpointStore.open(one.checkpoint))
    assert beat is not None
    assert beat.phase == "stopped"


def test_the_operator_sees_its_driver_die_and_recovers_and_starts_it_again(
    yarn: EmbeddedYarn,
    hdfs: EmbeddedHdfs,
    stream: StreamFactory,
    environment: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = stream(CLUSTER, f"{hdfs.url}/checkpoints/operators")
    one.feed(900)
    connect(monkeypatch, yarn, one.bootstrap)
    told = {"EOS_FAILPOINTS": "decided=stop@2", "EOS_FAILPOINTS_DIR": str(tmp_path)}
    task = operator(
        one,
        told,
        application=str(APP),
        conf=SMALL,
        jars=",".join(map(str, spark_jars())),
        archives=f"{environment}#environment",
    )
    beat = struck(
        one,
        task,
        lambda watched: kill_container(stopped_on(yarn, one, watched)),
        "the driver's container at `decided`; the operator recovers and starts it again",
    )
    assert (beat.master, beat.deploy_mode) == ("yarn", "cluster")


def test_a_dag_submits_recovers_and_resumes_it_on_yarn_with_its_checkpoint_on_hdfs(
    yarn: EmbeddedYarn, hdfs: EmbeddedHdfs, stream: StreamFactory, environment: Path, tmp_path: Path
) -> None:
    one = stream(CLUSTER, f"{hdfs.url}/checkpoints/by-dag")
    one.feed(900)
    with submitted_by_dag(
        one,
        SPARK,
        environment={
            "HADOOP_CONF_DIR": str(yarn.configuration_folder),
            "PATH": without_pythonpath(tmp_path / "bin", spark_home() / "bin" / "spark-submit"),
        },
        conf=SMALL,
        archives=f"{environment}#environment",
        env_vars={"EOS_FAILPOINTS": "decided=stop@2", "EOS_FAILPOINTS_DIR": str(tmp_path)},
    ) as by_dag:
        kill_container(stopped_on(yarn, one, by_dag.is_running, by_dag.said))
        one.feed(300)
        by_dag.succeed()
    one.judge("the driver's container at `decided`; submitted, recovered and resumed by the DAG")


def connect(monkeypatch: pytest.MonkeyPatch, yarn: EmbeddedYarn, kafka: str) -> None:
    """What a worker of Airflow has that submits to it."""
    to_kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": kafka}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(SPARK))
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(to_kafka))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn.configuration_folder))
    monkeypatch.setenv("PATH", f"{spark_home() / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", SHORT_LIVED)
    monkeypatch.delenv("PYTHONPATH", raising=False)  # it would be the containers', too


def submit(
    one: Stream,
    yarn: EmbeddedYarn,
    environment: Path,
    places: Path,
    *,
    trigger: str,
    driver: str = "",
    task: str = "",
) -> subprocess.Popen[bytes]:
    secret = places / "kafka.json"
    secret.touch(mode=0o600)
    secret.write_text(json.dumps({"bootstrap.servers": one.bootstrap}))
    there = {
        "spark.yarn.appMasterEnv.EOS_KAFKA_CONFIG_FILE": "kafka.json",
        "spark.yarn.appMasterEnv.EOS_READ_ONCE": "1",
        "spark.yarn.appMasterEnv.EOS_FAILPOINTS": driver,
        "spark.yarn.appMasterEnv.EOS_FAILPOINTS_DIR": str(places),
        "spark.executorEnv.EOS_FAILPOINTS": task,
        "spark.executorEnv.EOS_FAILPOINTS_DIR": str(places),
    }
    process = one.submit(
        "yarn",
        SMALL | {name: value for name, value in there.items() if value},
        options=["--archives", f"{environment}#environment", "--files", str(secret)],
        # spark-submit would hand its PYTHONPATH on to the containers.
        env={"HADOOP_CONF_DIR": str(yarn.configuration_folder), "PYTHONPATH": ""},
        trigger=trigger,
        batch=300,
        kafka=None,
    )
    assert not [part for part in one.command if one.bootstrap in part], "no secret in there"
    return process


def stopped_on(
    yarn: EmbeddedYarn,
    one: Stream,
    watched: Callable[[], bool],
    said: Callable[[], str] | None = None,
) -> int:
    """The process that a failpoint has stopped, wherever it is, while somebody watches the app."""
    found: list[int] = []

    def seen() -> bool:
        found[:] = [pid for node in yarn.nodes for pid in stopped(node.pids())]
        assert found or watched(), "the app has ended"
        return bool(found)

    try:
        wait_until(seen, timeout=PATIENCE_S, every=0.5, what="the failpoint")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{(said or one.said)()}\n{containers(yarn)}") from None
    return found[0]


def kill_container(pid: int) -> None:
    """SIGKILL all that works in the folder of a container."""
    folder = Path(f"/proc/{pid}/cwd").readlink()
    assert folder.name.startswith("container_")
    for each in Path("/proc").iterdir():
        if each.name.isdigit() and _cwd(each) == folder:
            os.kill(int(each.name), signal.SIGKILL)


def containers(yarn: EmbeddedYarn) -> str:
    """What they said last."""
    logs = [log for node in yarn.nodes for log in (node.folder / "logs").rglob("std*")]
    return "\n".join(f"{log}:\n{log.read_text(errors='replace')[-3000:]}" for log in logs)


def _cwd(process: Path) -> Path | None:
    try:
        return (process / "cwd").readlink()
    except OSError:
        return None
