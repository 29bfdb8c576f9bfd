"""Kubernetes, deploy mode cluster: the driver is a pod, and it makes its executors' pods itself."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from msgspec.structs import replace

from airflow_eos.core.checkpoint import CheckpointStore, StartedBy, read_heartbeat
from airflow_eos.local import spark_jars
from airflow_eos.ops.supervision.heartbeat_monitor import ClusterManager, kill_elsewhere
from tests.cluster.by_operator import operator, struck
from tests.cluster.conftest import StreamFactory
from tests.cluster.k8s import FakeKubernetes
from tests.cluster.stream import APP, PATIENCE_S, ROOT, Stream, stopped
from tests.support.jvm import SHORT_LIVED
from tests.support.pipeline import wait_until
from tests.support.servers.standalone import spark_home

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

CLUSTER = "Kubernetes (a stand-in of the tests), cluster mode"
RBAC = ROOT / "deploy" / "kubernetes" / "rbac.yaml"
SECRET = "/etc/orders-kafka"
FROM_SECRET = {"EOS_KAFKA_CONFIG_FILE": f"{SECRET}/kafka.json"}


@pytest.fixture(scope="module")
def kubernetes() -> Iterator[FakeKubernetes]:
    with FakeKubernetes(yaml.safe_load_all(RBAC.read_text()), spark_jars()) as cluster:
        yield cluster


@pytest.fixture
def one(
    kubernetes: FakeKubernetes,
    stream: StreamFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Stream:
    """A stream, what a worker of Airflow has that submits it, and the secret that is mounted."""
    new = stream(CLUSTER)
    to_kafka = {"bootstrap.servers": new.bootstrap}
    extra = {"deploy-mode": "cluster", "namespace": "default"}
    to_spark = {"conn_type": "spark", "host": kubernetes.master, "extra": extra}
    kafka = {"conn_type": "kafka", "extra": to_kafka}
    kubernetes.secret("orders-kafka", {"kafka.json": json.dumps(to_kafka)})
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(to_spark))
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(kafka))
    monkeypatch.setenv(
        "KUBECONFIG", str(kubernetes.kubeconfig(tmp_path / "kubeconfig", "eos-submit"))
    )
    monkeypatch.setenv("PATH", f"{spark_home() / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", SHORT_LIVED)
    return new


def test_the_driver_and_then_an_executor_are_killed_with_their_pods(
    kubernetes: FakeKubernetes, one: Stream, tmp_path: Path
) -> None:
    one.feed(900)
    submit(kubernetes, one, tmp_path, driver="decided=stop@2")
    kubernetes.kubelet.kill(stopped_in(kubernetes, "driver"))
    one.recover()
    one.feed(300)
    submit(kubernetes, one, tmp_path, task="task-prepared=stop@2", trigger="available-now")
    kubernetes.kubelet.kill(stopped_in(kubernetes, "executor"))
    wait_until(
        lambda: len(kubernetes.pods("driver", "Succeeded")) == 1,
        timeout=PATIENCE_S,
        every=1,
        what="the driver's end",
    )
    one.judge("the driver's pod at `decided`, then an executor's at `task-prepared`")
    beat = read_heartbeat(CheckpointStore.open(one.checkpoint))
    assert beat is not None
    assert beat.phase == "stopped"


def test_the_operator_sees_its_driver_die_and_recovers_and_starts_it_again(
    kubernetes: FakeKubernetes, one: Stream, tmp_path: Path
) -> None:
    one.feed(900)
    told = {"EOS_FAILPOINTS": "decided=stop@2", "EOS_FAILPOINTS_DIR": str(tmp_path)}
    task = operator(
        one,
        told | FROM_SECRET,
        application=f"local://{APP}",
        ship_package=False,
        conf=in_pods(kubernetes, tmp_path),
    )
    beat = struck(
        one,
        task,
        lambda watched: kubernetes.kubelet.kill(stopped_in(kubernetes, "driver", watched)),
        "the driver's pod at `decided`; the operator recovers and starts it again",
    )
    assert (beat.deploy_mode, beat.namespace) == ("cluster", "default")


def test_cancel_kill_ends_the_pod_and_its_executors_go_with_it(
    kubernetes: FakeKubernetes, one: Stream, tmp_path: Path
) -> None:
    """The pod is found by what the heartbeat says; ``spark-submit --kill`` deletes it."""
    one.feed(300)
    submit(kubernetes, one, tmp_path, pod="eos-start-1-driver")
    wait_until(lambda: one.visible() == 300, timeout=PATIENCE_S, every=1, what="the first rows")
    beat = read_heartbeat(CheckpointStore.open(one.checkpoint))
    assert beat is not None
    (pod,) = kubernetes.pods("driver")
    assert (beat.host, beat.namespace) == (pod["metadata"]["name"], "default")
    assert kubernetes.pods("executor")
    manager = ClusterManager(master=kubernetes.master, is_cluster=True)
    assert "no start of a task" in kill_elsewhere(beat, manager), "an app started by hand"
    assert kubernetes.pods("driver")
    start = StartedBy(dag_id="d", task_id="t", run_id="r", map_index=-1, submission="start-1")
    said = kill_elsewhere(replace(beat, started_by=start), manager)
    wait_until(
        lambda: not kubernetes.pods("driver") and not kubernetes.pods("executor"),
        timeout=PATIENCE_S,
        every=1,
        what=f"the end of the pods; said was: {said}",
    )
    one.recover()
    one.judge('the driver, by `cancel="kill"`; recovered from the shell')


def in_pods(kubernetes: FakeKubernetes, places: Path) -> dict[str, str]:
    """Settings of both ways to submit; a folder of this machine stands for shared storage."""
    conf = {
        "spark.submit.deployMode": "cluster",
        "spark.kubernetes.namespace": "default",
        "spark.kubernetes.container.image": "eos:test",
        "spark.kubernetes.driver.master": kubernetes.master.removeprefix("k8s://"),
        "spark.kubernetes.authenticate.driver.serviceAccountName": "eos-spark",
        "spark.kubernetes.driver.secrets.orders-kafka": SECRET,
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.instances": "2",
        "spark.executor.cores": "1",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": SHORT_LIVED,
        "spark.executor.extraJavaOptions": SHORT_LIVED,
    }
    for role in ("driver", "executor"):
        for name in ("mount.path", "options.path"):
            conf[f"spark.kubernetes.{role}.volumes.hostPath.work.{name}"] = str(places)
    return conf


def submit(
    kubernetes: FakeKubernetes,
    one: Stream,
    places: Path,
    *,
    driver: str = "",
    task: str = "",
    trigger: str = "200 milliseconds",
    pod: str | None = None,
) -> None:
    """As ``deploy/kubernetes/spark-submit.sh`` does, and wait until it has returned."""
    told = {
        "spark.kubernetes.driverEnv.EOS_KAFKA_CONFIG_FILE": FROM_SECRET["EOS_KAFKA_CONFIG_FILE"],
        "spark.kubernetes.submission.waitAppCompletion": "false",
        "spark.kubernetes.driverEnv.EOS_FAILPOINTS": driver,
        "spark.kubernetes.driverEnv.EOS_FAILPOINTS_DIR": str(places),
        "spark.executorEnv.EOS_FAILPOINTS": task,
        "spark.executorEnv.EOS_FAILPOINTS_DIR": str(places),
    }
    if pod is not None:
        told["spark.kubernetes.driver.pod.name"] = pod
    process = one.submit(
        kubernetes.master,
        in_pods(kubernetes, places) | {name: value for name, value in told.items() if value},
        trigger=trigger,
        batch=300,
        kafka=None,
        in_image=True,
    )
    assert process.wait(PATIENCE_S) == 0, one.said()
    assert not [part for part in one.command if one.bootstrap in part], "no secret in there"


def stopped_in(
    kubernetes: FakeKubernetes, role: str, watched: Callable[[], bool] = lambda: True
) -> str:
    """The pod whose process a failpoint has stopped, while somebody watches the app."""
    found: list[str] = []

    def seen() -> bool:
        names = [each["metadata"]["name"] for each in kubernetes.pods(role)]
        found[:] = [name for name in names if stopped(kubernetes.kubelet.pids(name))]
        assert found or watched(), "the app has ended"
        return bool(found)

    try:
        wait_until(seen, timeout=PATIENCE_S, every=0.5, what=f"the failpoint of the {role}")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{kubernetes.kubelet.said()}") from None
    return found[0]
