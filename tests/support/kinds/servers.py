"""The servers that kinds need, each started when the first test of a process asks for it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Self

from airflow_eos.local import EmbeddedKafka
from tests.integration.kept import endpoint
from tests.support.mysql import mysql_server
from tests.support.servers.hbase import EmbeddedHBase
from tests.support.servers.iceberg import EmbeddedIcebergRest
from tests.support.servers.postgres import EmbeddedPostgres
from tests.support.servers.redis import EmbeddedRedis
from tests.support.servers.s3 import EmbeddedS3


@contextmanager
def _postgres() -> Iterator[str]:
    with EmbeddedPostgres() as server:
        yield server.dsn


@contextmanager
def _mariadb() -> Iterator[str]:
    with mysql_server() as server:
        yield server.url


@contextmanager
def _redis() -> Iterator[str]:
    with EmbeddedRedis() as server:
        yield server.url


@contextmanager
def _hbase() -> Iterator[str]:
    with EmbeddedHBase() as server:
        yield server.url


@contextmanager
def _endpoint() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder, endpoint.running(Path(folder)) as running:
        yield f"{running.port} {running.file}"


@contextmanager
def _lake() -> Iterator[str]:
    with EmbeddedS3() as bucket, EmbeddedIcebergRest(bucket) as catalog:
        told = {"url": bucket.url, "options": bucket.storage_options, "catalog": catalog.uri}
        yield json.dumps(told)


_STARTS: dict[str, Callable[[], AbstractContextManager[str]]] = {
    "postgres": _postgres,
    "mariadb": _mariadb,
    "redis": _redis,
    "hbase": _hbase,
    "endpoint": _endpoint,
    "lake": _lake,
}


class Servers:
    """Those of one test process; a context manager."""

    def __init__(self, kafka: EmbeddedKafka) -> None:
        self._running = {"kafka": kafka.bootstrap_servers}
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def of(self, names: Iterable[str]) -> dict[str, str]:
        """How each of them is reached."""
        for name in names:
            if name not in self._running:
                self._running[name] = self._resources.enter_context(_STARTS[name]())
        return {name: self._running[name] for name in names}
