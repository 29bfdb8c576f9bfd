"""A private S3 server on this machine (s3proxy), gone with whoever started it."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from airflow_eos.errors import LocalEnvironmentError
from airflow_eos.local.jars import s3_jars
from airflow_eos.local.java import java_program
from airflow_eos.local.layout import HOST, free_ports

_HERE = Path(__file__).parent
_READY_SECONDS = 60.0
_BUCKET = "bucket"


class EmbeddedS3:
    """s3proxy on a free port of the loopback interface, with one bucket; a context manager.

    It answers a create or a multipart upload that is told ``If-None-Match: *`` as Amazon does; a
    copy it does not: it replaces what is there.

    Attributes:
        port: of the server, the same after :meth:`kill` and :meth:`start`; 0 before the first.
        data: the folder of its objects, as files.

    Raises:
        LocalEnvironmentError: from ``start``: no Java, no jar, or it does not come up.
    """

    def __init__(self) -> None:
        self.port = 0
        self._secret = secrets.token_hex(16)
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The bucket."""
        return f"s3://{_BUCKET}"

    @property
    def data(self) -> Path:
        """The bucket's objects."""
        assert self._folder is not None  # noqa: S101  it was started
        return self._folder / "data" / _BUCKET

    @property
    def storage_options(self) -> dict[str, str]:
        """How a client reaches it."""
        return {
            "aws_endpoint": f"http://{HOST}:{self.port}",
            "aws_allow_http": "true",
            "aws_access_key_id": "eos",
            "aws_secret_access_key": self._secret,
            "aws_region": "us-east-1",
        }

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
        folder = str(self._folder)
        guard = [sys.executable, "-I", "-S", str(_HERE / "guard.py"), str(os.getpid()), folder]
        server = [java_program(), "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        with (self._folder / "log").open("ab") as out:
            self._process = subprocess.Popen(
                [*guard, *server, "-jar", str(jar), "--properties", str(settings)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal is for us, not for the server
            )
        try:
            self._wait_until_ready(self._folder / "log")
        except BaseException:  # Ctrl-C too must leave nothing behind
            self.kill()
            raise

    def kill(self) -> None:
        """End it with SIGKILL, guard and all; its data stays for :meth:`start`."""
        if self._process is not None:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End it and remove its data. Closing twice is harmless."""
        self.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _wait_until_ready(self, log: Path) -> None:
        assert self._process is not None  # noqa: S101  it was spawned
        deadline = time.monotonic() + _READY_SECONDS
        while not _answers(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
                raise LocalEnvironmentError(
                    f"s3proxy ended, or was not ready in time:\n{said}\nTry again; the machine "
                    "may be too busy."
                )
            time.sleep(0.05)


def _answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://{HOST}:{port}/", timeout=5.0).close()
    except urllib.error.HTTPError:
        return True  # it wants a signature
    except OSError:
        return False
    return True
