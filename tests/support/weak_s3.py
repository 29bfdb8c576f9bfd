"""Adobe's s3mock: it answers ``If-None-Match: *``, and lets several win who come at once."""

from __future__ import annotations

import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from airflow_eos.local.broker import HOST, free_ports
from airflow_eos.local.jars import java_program
from tests.support.servers.jars import server_jars
from tests.support.servers.process import EmbeddedProcess

_BUCKET = "bucket"
_READY_SECONDS = 120.0


class WeakS3(EmbeddedProcess):
    """On a free port of the loopback interface, with one bucket."""

    @property
    def url(self) -> str:
        """The bucket."""
        return f"s3://{_BUCKET}"

    @property
    def storage_options(self) -> dict[str, str]:
        """How a client reaches it."""
        return {
            "aws_endpoint": f"http://{HOST}:{self.port}",
            "aws_allow_http": "true",
            "aws_access_key_id": "eos",
            "aws_secret_access_key": "eos",
            "aws_region": "us-east-1",
        }

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
