"""All of it, as a block of Python."""

from __future__ import annotations

import base64
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from airflow_eos.local.jars import java_program
from airflow_eos.local.process import Embedded
from tests.cluster.k8s.api import Api
from tests.cluster.k8s.kubelet import Kubelet
from tests.cluster.k8s.objects import Object, Objects, RefusedError
from tests.cluster.k8s.pods import Image
from tests.cluster.k8s.rights import Rights
from tests.support.servers.standalone import spark_home


class FakeKubernetes(Embedded):
    """A cluster of one node.

    Args:
        manifests: service accounts, roles and bindings.
        jars: of the image, beside Spark's own.

    Attributes:
        objects: what the API server keeps.
        kubelet: the node.
    """

    def __init__(self, manifests: Iterable[dict[str, Any]], jars: Iterable[Path]) -> None:
        self.objects = Objects()
        self._rights = Rights(manifests)
        self._folder = Path(tempfile.mkdtemp(prefix="airflow-eos-k8s-"))
        java = Path(java_program()).resolve().parents[1]
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        self._image = Image(spark_home(), list(jars), {"JAVA_HOME": str(java), **python})

    @property
    def master(self) -> str:
        """As ``spark-submit`` takes it."""
        return f"k8s://{self._api.url}"

    @property
    def administrator(self) -> str:
        """A token that may do everything."""
        return self._rights.administrator

    def token_of(self, account: str) -> str:
        """A token of a service account."""
        return self._rights.token_of(account)

    def kubeconfig(self, path: Path, account: str) -> Path:
        """What a service account that submits from this machine has in ``KUBECONFIG``."""
        one = {"cluster": "fake", "user": account, "namespace": "default"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "contexts": [{"name": "fake", "context": one}],
            "clusters": [{"name": "fake", "cluster": {"server": self._api.url}}],
            "users": [{"name": account, "user": {"token": self.token_of(account)}}],
        }
        path.write_text(json.dumps(config))  # JSON is YAML
        return path

    def start(self) -> None:
        """Start the API server and the node."""
        self._api = Api(self.objects, self._rights)
        self.kubelet = Kubelet(self.objects, self._rights, self._image, self._folder)

    def close(self) -> None:
        """End all pods and the server."""
        self.kubelet.close()
        self.objects.close()
        self._api.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def secret(self, name: str, files: Mapping[str, str]) -> None:
        """As ``kubectl create secret generic``."""
        data = {each: base64.b64encode(text.encode()).decode() for each, text in files.items()}
        with suppress(RefusedError):  # it is there from before
            self.objects.delete("secrets", name)
        self.objects.create("secrets", {"metadata": {"name": name}, "data": data})

    def pods(self, role: str, phase: str = "Running") -> list[Object]:
        """The pods of Spark's drivers or executors in a phase, the oldest first."""
        found, _ = self.objects.find(
            "pods",
            lambda it: (
                it["metadata"].get("labels", {}).get("spark-role") == role
                and it["status"]["phase"] == phase
            ),
        )
        return found
