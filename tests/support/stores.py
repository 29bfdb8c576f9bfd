"""An emulator of Azure's store, from its package registry, in a pinned version.

Google's has none that helps: fake-gcs-server (1.55) has no XML API, by which obstore writes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import shutil
import subprocess
import tempfile
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any, Self

import pytest
from werkzeug.serving import make_server

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.local import spark_jars
from airflow_eos.local.broker import HOST, free_ports
from airflow_eos.local.jars import cache_folder, java_program, s3a_jars
from tests.support.servers.hdfs import EmbeddedHdfs
from tests.support.servers.jars import server_jars
from tests.support.servers.process import EmbeddedProcess
from tests.support.servers.s3 import EmbeddedS3, options_of

AZURITE = "3.37.0"  # of 3.34 deltalake is shown an old listing
_ACCOUNT = "devstoreaccount1"
# Azurite's only account, which its documentation prints; it opens nothing but an emulator.
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_BUCKET = "bucket"
_READY_SECONDS = 120.0


class Azurite(EmbeddedProcess):
    """Azure's blobs, with one container."""

    url = f"az://{_BUCKET}"

    @property
    def storage_options(self) -> dict[str, str]:
        return {
            "azure_storage_account_name": _ACCOUNT,
            "azure_storage_account_key": _KEY,
            "azure_endpoint": f"http://{HOST}:{self.port}/{_ACCOUNT}",
            "allow_http": "true",
        }

    def start(self) -> None:
        installed = cache_folder() / f"azurite-{AZURITE}"
        program = installed / "node_modules" / ".bin" / "azurite-blob"
        if not program.exists():
            _install(installed)
        self._folder = Path(tempfile.mkdtemp(prefix="airflow-eos-azurite-"))
        (self.port,) = free_ports(1)
        where = ["--blobHost", HOST, "--blobPort", str(self.port), "--location", str(self._folder)]
        plain = ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
        command = [str(program), *where, *plain]
        self._run(command, self._folder, self._has_container, _READY_SECONDS)

    def _has_container(self) -> bool:
        """By Azure's SharedKey, since no client at hand makes containers."""
        path = f"/{_ACCOUNT}/{_BUCKET}"
        told = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        headers = "".join(f"{name}:{value}\n" for name, value in sorted(told.items()))
        signed = f"PUT{chr(10) * 12}{headers}/{_ACCOUNT}{path}\nrestype:container"
        mac = hmac.new(base64.b64decode(_KEY), signed.encode(), hashlib.sha256).digest()
        told["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(mac).decode()}"
        return _answers(f"http://{HOST}:{self.port}{path}?restype=container", told)


def _install(folder: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed, which would fetch the emulator")
    ran = subprocess.run(
        ["npm", "install", "--silent", "--prefix", str(folder), f"azurite@{AZURITE}"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def _answers(url: str, headers: dict[str, str]) -> bool:
    asked = urllib.request.Request(url, method="PUT", headers=headers)
    try:
        urllib.request.urlopen(asked, timeout=60).close()
    except urllib.error.HTTPError as error:
        if error.code == 409:
            return True
        raise AssertionError(f"{error.code}: {error.read()!r}") from error
    except OSError:
        return False
    return True


# --- a disk that is really full -------------------------------------------------------------------


@contextmanager
def disk_of(size: str, folder: Path) -> Iterator[Path]:
    """A disk of that size in ``folder``, where a test may mount one; else the test is skipped."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("not allowed to mount a disk; the unit tests have the error injected")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


# --- weak s3 --------------------------------------------------------------------------------------
# Adobe's s3mock: it answers ``If-None-Match: *``, and lets several win who come at once.


class WeakS3(EmbeddedProcess):
    """On a free port of the loopback interface, with one bucket."""

    @property
    def url(self) -> str:
        """The bucket."""
        return f"s3://{_BUCKET}"

    @property
    def storage_options(self) -> dict[str, str]:
        """How a client reaches it."""
        return options_of(self.port, "eos")

    def start(self) -> None:
        """Start it; returns when it has its bucket."""
        (jar,) = server_jars("s3mock-5.2.0")
        self._folder = Path(tempfile.mkdtemp(prefix="airflow-eos-s3mock-"))
        (self.port,) = free_ports(1)
        java = [java_program(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        told = [f"-Djava.io.tmpdir={self._folder}", "-jar", str(jar), "--server.port=0"]
        command = [*java, *told, "--server.address=127.0.0.1", f"--http.port={self.port}"]
        self._run(command, self._folder, self._has_bucket, _READY_SECONDS)

    def _has_bucket(self) -> bool:
        asked = urllib.request.Request(f"http://{HOST}:{self.port}/{_BUCKET}", method="PUT")
        try:
            urllib.request.urlopen(asked, timeout=60).close()
        except urllib.error.HTTPError as error:
            return error.code == 409
        except OSError:
            return False
        return True


# --- stores ---------------------------------------------------------------------------------------
# Every place where a checkpoint may live, as real as it can be had on one machine.


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
    elif kind in THEIRS:
        yield _of_a_user(kind)
    else:
        with _SERVERS[kind]() as server:
            yield Where(server.url, server.storage_options)


THEIRS = ("gs", "abfss")
"""Stores that nothing on this machine stands for: the tests go there with a user's credentials."""


def _of_a_user(scheme: str) -> Where:
    """An empty folder that ``EOS_TEST_GS`` names, with ``EOS_TEST_GS_OPTIONS`` as JSON."""
    variable = f"EOS_TEST_{scheme.upper()}"
    if not (url := os.environ.get(variable, "")):
        pytest.skip(f"{variable} names no folder such as {scheme}://…/tests, to be written to")
    options = json.loads(os.environ.get(f"{variable}_OPTIONS", "{}"))
    return Where(f"{url.rstrip('/')}/{uuid.uuid4().hex}", options)


_SERVERS: dict[str, Any] = {"azurite": Azurite, "s3mock": WeakS3, "s3proxy": EmbeddedS3}
