"""A private S3 server in this process (moto), gone with it, to try tables on S3."""

from __future__ import annotations

import logging
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from airflow_eos.errors import LocalEnvironmentError, Remedy

_SECONDS = 30.0


@contextmanager
def local_s3() -> Iterator[dict[str, str]]:
    """Start a server with one empty bucket, ``lake``; yield the storage options that reach it.

    Raises:
        LocalEnvironmentError: moto is not installed.
    """
    if find_spec("moto") is None or find_spec("flask") is None:
        raise LocalEnvironmentError(
            "A table on S3 is tried on moto, a server of S3 in Python, and it is not installed.",
            Remedy(commands=("pip install 'moto[s3,server]'",)),
        )
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # else a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        asked = urllib.request.Request(f"{endpoint}/lake", method="PUT")  # noqa: S310 - ours
        urllib.request.urlopen(asked, timeout=_SECONDS).close()  # noqa: S310
        yield {
            "aws_endpoint": endpoint,
            "aws_allow_http": "true",
            "aws_access_key_id": "local",
            "aws_secret_access_key": "local",
            "aws_region": "us-east-1",
        }
    finally:
        server.stop()
