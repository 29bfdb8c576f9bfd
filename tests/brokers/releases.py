"""Apache Kafka's releases, from the repository that publishes them, as brokers of a test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from airflow_eos.local import EmbeddedKafka, broker
from airflow_eos.local.broker import DIFFERENCES
from airflow_eos.local.jars import KAFKA_VERSION, LOCKS, ensure, read_bundle
from tests.support.servers.jars import log4j_1_jars

HERE = Path(__file__).parent / "locks"
AS_SHIPPED = {
    each.name: each.default
    for each in DIFFERENCES
    if "replication" not in each.name and "isr" not in each.name
}
"""Kafka's own defaults, but for the number of copies: there is one broker."""


class Release(NamedTuple):
    """One minor release, by its newest patch that can be had, and a transaction version of it."""

    version: str
    transactions: int

    def __str__(self) -> str:
        return f"{self.version}-tv{self.transactions}"

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(map(int, self.version.split(".")))


def _versions() -> list[str]:
    locks = [*HERE.glob("kafka-*.lock"), LOCKS / f"kafka-{KAFKA_VERSION}.lock"]
    found = {each.stem.removeprefix("kafka-") for each in locks}
    return sorted(found, key=lambda v: tuple(map(int, v.split("."))))


VERSIONS = tuple(_versions())
RELEASES = tuple(
    Release(version, transactions)
    for version in VERSIONS
    for transactions in ((0, 1, 2) if version >= "4" else (0,))
)
"""The feature ``transaction.version`` is there since 4.0."""
OF_EACH_VERSION = tuple(each for each in RELEASES if each.transactions == 0)


@contextmanager
def programs(version: str) -> Iterator[None]:
    """What is started meanwhile is of this release."""
    if version == KAFKA_VERSION:
        yield
        return
    jars = (*ensure(read_bundle(f"kafka-{version}", HERE)), *log4j_1_jars())
    with (
        patch.object(broker, "broker_jars", lambda: jars),
        patch.object(broker, "class_archive", lambda: Path("none")),
    ):
        yield


@contextmanager
def running(
    release: Release, properties: Mapping[str, str] | None = None, **options: Any
) -> Iterator[EmbeddedKafka]:
    """A broker of the release."""
    features = {"transaction.version": release.transactions} if release.numbers >= (4,) else {}
    made = EmbeddedKafka(properties, features=features, **options)
    with programs(release.version):
        made.start()
    try:
        yield made
    finally:
        made.close()
