"""What stands for Kubernetes is no kinder: it refuses, waits, deletes and isolates as that does."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.cluster.k8s import FakeKubernetes
from tests.cluster.k8s.objects import selector
from tests.cluster.stream import ROOT
from tests.support.pipeline import wait_until

pytestmark = [pytest.mark.cluster]

RBAC = ROOT / "deploy" / "kubernetes" / "rbac.yaml"
MANIFESTS = list(yaml.safe_load_all(RBAC.read_text()))
SELECTORS: list[tuple[str, dict[str, str], bool]] = [
    ("a=1", {"a": "1"}, True),
    ("a=1,b in (x, y)", {"a": "1", "b": "y"}, True),
    ("a=1,b in (x, y)", {"a": "1", "b": "z"}, False),
    ("a!=1", {"a": "1"}, False),
    ("a notin (1,2),b", {"b": "x"}, True),
    ("!a", {"a": "1"}, False),
]


@pytest.fixture(scope="module")
def kubernetes() -> Iterator[FakeKubernetes]:
    with FakeKubernetes(MANIFESTS, ()) as cluster:
        yield cluster


def ask(
    cluster: FakeKubernetes,
    method: str,
    path: str,
    token: str | None,
    body: Any = None,
    kind: str = "application/json",
) -> Any:
    """The answer, or the status with which it was refused."""
    url = f"{cluster.master.removeprefix('k8s://')}/api/v1/namespaces/default/{path}"
    headers = {"Content-Type": kind}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code


def a_pod(name: str, *command: str, **spec: Any) -> dict[str, Any]:
    """A pod that runs a command in the place of Spark."""
    one = {"name": "c", "image": "eos:test", "args": list(command)}
    return {"metadata": {"name": name}, "spec": {"containers": [one], **spec}}


def phase(cluster: FakeKubernetes, name: str) -> str:
    return str(cluster.objects.get("pods", name)["status"]["phase"])


def test_who_is_unknown_or_has_no_such_role_is_refused(kubernetes: FakeKubernetes) -> None:
    driver = kubernetes.token_of("eos-spark")
    nobody = kubernetes.token_of("default")
    asked = ("GET", "pods")
    assert ask(kubernetes, *asked, None) == 401
    assert ask(kubernetes, *asked, "made up") == 401
    assert ask(kubernetes, *asked, nobody) == 403
    assert ask(kubernetes, *asked, driver)["kind"] == "PodList"
    assert ask(kubernetes, "GET", "secrets", driver) == 403, "a driver reads no secret but its own"
    assert ask(kubernetes, "GET", "secrets", kubernetes.administrator)["items"] == []
    assert ask(kubernetes, "GET", "pods/none", driver) == 404
    assert ask(kubernetes, "GET", "deployments", kubernetes.administrator) == 404


def test_who_applies_what_is_not_there_needs_the_right_to_create_it() -> None:
    """As Kubernetes: patch is for what is there, create for what apply makes."""
    manifests = yaml.safe_load_all(RBAC.read_text().replace("[create, patch]", "[patch]"))
    applied = {"metadata": {"name": "it"}}
    how = "application/apply-patch+yaml"
    with FakeKubernetes(manifests, ()) as less, FakeKubernetes(MANIFESTS, ()) as cluster:
        one = ("PATCH", "configmaps/it")
        assert ask(less, *one, less.token_of("eos-submit"), applied, how) == 403
        submit = cluster.token_of("eos-submit")
        for _ in range(2):
            assert ask(cluster, *one, submit, applied, how)["kind"] == "ConfigMap"


def test_a_name_is_taken_once_and_what_it_owns_goes_with_it(kubernetes: FakeKubernetes) -> None:
    admin = kubernetes.administrator
    owner = ask(kubernetes, "POST", "services", admin, {"metadata": {"name": "s"}, "spec": {}})
    again = ask(kubernetes, "POST", "services", admin, {"metadata": {"name": "s"}, "spec": {}})
    assert again == 409
    owned = {"name": "m", "ownerReferences": [{"uid": owner["metadata"]["uid"]}]}
    ask(kubernetes, "POST", "configmaps", admin, {"metadata": owned, "data": {}})
    ask(kubernetes, "DELETE", "services/s", admin)
    assert ask(kubernetes, "GET", "configmaps/m", admin) == 404


def test_a_pod_is_a_machine_of_its_own(
    kubernetes: FakeKubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host name, its process ids, its files; a hostPath alone is shared."""
    volume = {"name": "v", "hostPath": {"path": str(tmp_path)}}
    pod = a_pod(
        "alone",
        "sh",
        "-c",
        f"hostname > {tmp_path}/name; echo $$ > {tmp_path}/pid; cat /etc/hosts > {tmp_path}/hosts;"
        f"env > {tmp_path}/env; echo x > /etc/of-the-pod; exit 3",
        volumes=[volume],
    )
    pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": str(tmp_path)}]
    monkeypatch.setenv("OF_THIS_MACHINE", "1")
    ask(kubernetes, "POST", "pods", kubernetes.administrator, pod)
    wait_until(lambda: phase(kubernetes, "alone") == "Failed", timeout=60, what="its end")
    assert (tmp_path / "name").read_text().strip() == "alone" != socket.gethostname()
    assert int((tmp_path / "pid").read_text()) < 100
    assert "alone" in (tmp_path / "hosts").read_text()
    assert "OF_THIS_MACHINE" not in (tmp_path / "env").read_text()
    assert not Path("/etc/of-the-pod").exists()
    (status,) = kubernetes.objects.get("pods", "alone")["status"]["containerStatuses"]
    assert status["state"]["terminated"]["exitCode"] == 3


def test_a_pod_waits_for_what_it_mounts(kubernetes: FakeKubernetes, tmp_path: Path) -> None:
    """As Spark has it: the driver's pod is made before its ConfigMap."""
    pod = a_pod(
        "waits",
        "sh",
        "-c",
        "cat /etc/given/file",
        volumes=[{"name": "v", "configMap": {"name": "later"}}],
    )
    pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": "/etc/given"}]
    ask(kubernetes, "POST", "pods", kubernetes.administrator, pod)
    assert phase(kubernetes, "waits") == "Pending"
    later = {"metadata": {"name": "later"}, "data": {"file": "it is there"}}
    ask(kubernetes, "POST", "configmaps", kubernetes.administrator, later)
    wait_until(lambda: phase(kubernetes, "waits") == "Succeeded", timeout=60, what="its end")
    assert "it is there" in kubernetes.kubelet.log("waits").read_text()


def test_who_is_deleted_may_end_first_and_is_killed_after_its_time(
    kubernetes: FakeKubernetes,
) -> None:
    admin = kubernetes.administrator
    deaf = a_pod("deaf", "sh", "-c", "trap '' TERM; while :; do sleep 0.2; done")
    ask(kubernetes, "POST", "pods", admin, deaf)
    wait_until(lambda: bool(kubernetes.kubelet.pids("deaf")), timeout=60, what="its start")
    told = ask(kubernetes, "DELETE", "pods/deaf", admin, {"gracePeriodSeconds": 1})
    assert told["metadata"]["deletionTimestamp"]
    assert ask(kubernetes, "GET", "pods/deaf", admin)["status"]["phase"] == "Running"
    wait_until(
        lambda: ask(kubernetes, "GET", "pods/deaf", admin) == 404, timeout=30, what="its end"
    )


@pytest.mark.parametrize(("asked", "labels", "expected"), SELECTORS)
def test_selectors_are_read_as_spark_writes_them(
    asked: str, labels: dict[str, str], expected: bool
) -> None:
    pod = {"metadata": {"labels": labels}}
    assert selector({"labelSelector": [asked]})(pod) is expected
