"""A private S3 server on this machine (moto), gone with this process, to try tables on S3."""

from __future__ import annotations

import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from airflow_eos.errors import LocalEnvironmentError, Remedy
from airflow_eos.local.broker import HOST, free_ports
from airflow_eos.local.process import guarded, tail

_SECONDS = 60.0
_SERVER = "from moto.server import main; main()"


@contextmanager
def local_s3() -> Iterator[dict[str, str]]:
    """Start a server with one empty bucket, ``lake``; yield the storage options that reach it.

    It is a process of its own: deltalake waits for some answers with Python's lock in its hand.

    Raises:
        LocalEnvironmentError: moto is not installed, or does not come up.
    """
    if find_spec("moto") is None or find_spec("flask") is None:
        raise LocalEnvironmentError(
            "A table on S3 is tried on moto, a server of S3 in Python, and it is not installed.",
            Remedy(commands=("pip install 'moto[s3,server]'",)),
        )
    (port,) = free_ports(1)
    endpoint = f"http://{HOST}:{port}"
    with tempfile.TemporaryDirectory(prefix="airflow-eos-s3-") as folder:
        log = Path(folder) / "log"
        command = [sys.executable, "-c", _SERVER, "-H", HOST, "-p", str(port)]
        server = guarded(command, folder=Path(folder), log=log)
        try:
            deadline = time.monotonic() + _SECONDS
            while not _has_bucket(f"{endpoint}/lake"):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise LocalEnvironmentError(f"moto does not come up:\n{tail(log)}")
                time.sleep(0.1)
            yield {
                "aws_endpoint": endpoint,
                "aws_allow_http": "true",
                "aws_access_key_id": "local",
                "aws_secret_access_key": "local",
                "aws_region": "us-east-1",
            }
        finally:
            server.terminate()
            server.wait()


def _has_bucket(url: str) -> bool:
    asked = urllib.request.Request(url, method="PUT")  # noqa: S310 - ours
    try:
        urllib.request.urlopen(asked, timeout=_SECONDS).close()  # noqa: S310
    except urllib.error.HTTPError:
        raise
    except OSError:
        return False
    return True
