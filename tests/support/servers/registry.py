"""A private schema registry on this machine (Apicurio), gone with whoever started it."""

from __future__ import annotations

import tarfile
import tempfile
import urllib.request
from functools import partial
from pathlib import Path

from airflow_eos.local.broker import HOST, free_ports
from airflow_eos.local.jars import java_program
from tests.support.servers.jars import server_jars
from tests.support.servers.process import EmbeddedProcess

APICURIO_VERSION = "2.6.13"  # 3 wants a newer Java than Spark does
_PATH = "apis/ccompat/v7"


class EmbeddedRegistry(EmbeddedProcess):
    """Apicurio on a free port of the loopback interface; a context manager.

    Its archive is fetched the first time (142 MB).
    It keeps its schemas in memory: after :meth:`kill` and :meth:`start` it knows none.

    Attributes:
        port: of the server, the same after :meth:`kill` and :meth:`start`; 0 before the first.

    Raises:
        LocalEnvironmentError: from ``start``: no Java, no archive, or it does not come up.
    """

    @property
    def url(self) -> str:
        """Where it speaks the REST protocol of Confluent's registry."""
        return f"http://{HOST}:{self.port}/{_PATH}"

    def start(self) -> None:
        """Start it; returns when it answers."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="airflow-eos-registry-"))
            (archive,) = server_jars(f"apicurio-registry-{APICURIO_VERSION}")
            with tarfile.open(archive) as whole:
                whole.extractall(self._folder, filter="data")
            (self.port,) = free_ports(1)
        (program,) = self._folder.glob("*-runner.jar")
        command = [
            *(java_program(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *(f"-Dquarkus.http.host={HOST}", f"-Dquarkus.http.port={self.port}"),
            f"-Djava.io.tmpdir={self._folder}",
            *("-jar", str(program)),
        ]
        self._run(command, self._folder, partial(_answers, self.port))


def _answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://{HOST}:{port}/{_PATH}/subjects", timeout=60).close()
    except OSError:
        return False
    return True
