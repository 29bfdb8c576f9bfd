"""Every place where a checkpoint may live, as real as it can be had on one machine."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from werkzeug.serving import make_server

from airflow_eos.checkpoint import CheckpointStore
from airflow_eos.local import spark_jars
from airflow_eos.local.jars import s3a_jars
from tests.support.emulators import Azurite
from tests.support.servers.hdfs import EmbeddedHdfs
from tests.support.servers.s3 import EmbeddedS3
from tests.support.weak_s3 import WeakS3


@dataclass(frozen=True)
class Where:
    """A place, in a form that another process can open."""

    url: str
    options: dict[str, str] = field(default_factory=dict)

    @property
    def spark_conf(self) -> dict[str, str]:
        """How Spark's own files get there."""
        if not self.url.startswith("s3"):
            return {}
        s3a = "spark.hadoop.fs.s3a"
        return {
            f"{s3a}.endpoint": self.options["aws_endpoint"],
            f"{s3a}.path.style.access": "true",
            f"{s3a}.access.key": self.options["aws_access_key_id"],
            f"{s3a}.secret.key": self.options["aws_secret_access_key"],
        }

    @property
    def jars(self) -> tuple[Path, ...]:
        """Of Spark: the Kafka connector's, and the store's."""
        return (*spark_jars(), *(s3a_jars() if self.url.startswith("s3") else ()))

    def opened(self, name: str) -> CheckpointStore:
        return CheckpointStore.open(f"{self.url}/{name}", storage_options=self.options)


class Moto:
    """moto's S3 with one bucket, in threads of this process, which counts what it is asked.

    moto looks for the object, and then puts it, with nothing between its threads: now and then
    several win a conditional put. S3 decides one at a time, and so does this.
    """

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        self._lock, self._deciding = threading.Lock(), threading.Lock()
        self._asked: list[tuple[str, str, str]] = []
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._count, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        asked = urllib.request.Request(f"{self.endpoint}/bucket", method="PUT")
        urllib.request.urlopen(asked, timeout=60).close()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def asked(self) -> list[tuple[str, str, str]]:
        """Since the last look: by whom (``eos`` or ``spark``), price class, and the object."""
        with self._lock:
            found, self._asked = self._asked, []
        return found

    def _count(self, environ: dict[str, Any], start_response: Any) -> Any:
        who = "spark" if "aws-sdk-java" in environ.get("HTTP_USER_AGENT", "") else "eos"
        method, path = environ["REQUEST_METHOD"], environ.get("PATH_INFO", "")
        is_listing = method == "GET" and "list-type" in environ.get("QUERY_STRING", "")
        kind = "LIST" if is_listing else method
        with self._lock:
            self._asked.append((who, kind, path))
        with self._deciding if "HTTP_IF_NONE_MATCH" in environ else nullcontext():
            return self._app(environ, start_response)


@contextmanager
def moto() -> Iterator[Where]:
    with Moto() as server:
        yield Where("s3a://bucket", s3_options(server.endpoint))


def s3_options(endpoint: str) -> dict[str, str]:
    return {
        "aws_endpoint": endpoint,
        "aws_allow_http": "true",
        "aws_access_key_id": "eos",
        "aws_secret_access_key": "eos",
        "aws_region": "us-east-1",
    }


@contextmanager
def place(kind: str, folder: Path) -> Iterator[Where]:
    """``local``, ``moto``, ``hdfs``, or one of the servers below; ``s3mock`` lets several win."""
    if kind == "local":
        yield Where(str(folder))
    elif kind == "moto":
        with moto() as where:
            yield where
    elif kind == "hdfs":
        with EmbeddedHdfs() as hdfs:
            yield Where(hdfs.url)
    else:
        with _SERVERS[kind]() as server:
            yield Where(server.url, server.storage_options)


_SERVERS: dict[str, Any] = {
    "azurite": Azurite,
    "s3mock": WeakS3,
    "s3proxy": EmbeddedS3,
}
