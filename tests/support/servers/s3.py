"""A private S3 server on this machine (s3proxy), gone with whoever started it."""

from __future__ import annotations

import secrets
import tempfile
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path

from airflow_eos.local.broker import HOST, free_ports
from airflow_eos.local.jars import java_program
from tests.support.servers.jars import s3_jars
from tests.support.servers.process import EmbeddedProcess

_BUCKET = "bucket"


def options_of(port: int, secret: str) -> dict[str, str]:
    """How a client reaches a server of this machine."""
    return {
        "aws_endpoint": f"http://{HOST}:{port}",
        "aws_allow_http": "true",
        "aws_access_key_id": "eos",
        "aws_secret_access_key": secret,
        "aws_region": "us-east-1",
    }


class EmbeddedS3(EmbeddedProcess):
    """s3proxy on a free port of the loopback interface, with one bucket; a context manager.

    It answers a create or a multipart upload that is told ``If-None-Match: *`` as Amazon does; a
    copy it does not: it replaces what is there. While an object is written, a listing shows its
    temporary file beside it, which Amazon's does not.

    Attributes:
        port: of the server, the same after :meth:`kill` and :meth:`start`; 0 before the first.
        data: the folder of its objects, as files.

    Raises:
        LocalEnvironmentError: from ``start``: no Java, no jar, or it does not come up.
    """

    def __init__(self) -> None:
        super().__init__()
        self._secret = secrets.token_hex(16)

    @property
    def url(self) -> str:
        """The bucket."""
        return f"s3://{_BUCKET}"

    @property
    def data(self) -> Path:
        """The bucket's objects."""
        assert self._folder is not None
        return self._folder / "data" / _BUCKET

    @property
    def storage_options(self) -> dict[str, str]:
        """How a client reaches it."""
        return options_of(self.port, self._secret)

    def change_keys(self) -> None:
        """Let it take another secret, and the one of before no more."""
        self.kill()
        self._secret = secrets.token_hex(16)
        self.start()

    def start(self) -> None:
        """Start it, on its data where it ran before; returns when it answers."""
        (jar,) = s3_jars()
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="airflow-eos-s3-"))
            self.data.mkdir(parents=True)
            (self.port,) = free_ports(1)
        settings = self._folder / "s3proxy.conf"
        settings.touch(mode=0o600)
        settings.write_text(
            f"s3proxy.endpoint=http://{HOST}:{self.port}\n"
            "s3proxy.authorization=aws-v2-or-v4\ns3proxy.identity=eos\n"
            f"s3proxy.credential={self._secret}\n"
            "jclouds.provider=filesystem-nio2\njclouds.identity=eos\njclouds.credential=eos\n"
            f"jclouds.filesystem.basedir={self.data.parent}\n",
            encoding="utf-8",
        )
        server = [java_program(), "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command = [*server, "-jar", str(jar), "--properties", str(settings)]
        self._run(command, self._folder, partial(_answers, self.port))


def _answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://{HOST}:{port}/", timeout=60).close()
    except urllib.error.HTTPError:
        return True  # it wants a signature
    except OSError:
        return False
    return True
