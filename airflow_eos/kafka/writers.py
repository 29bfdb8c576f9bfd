"""What a task asks of a writer, and the choice between the two.

``arrow`` encodes record batches itself, ``librdkafka`` leaves that to confluent-kafka's producer.
Both refuse the same rows, leave the same transaction open and are ended by the same coordinator.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Literal, Protocol

from airflow_eos.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_eos.kafka.client.settings import KafkaSettings
    from airflow_eos.kafka.transactions.identity import TransactionIdentity, WrittenTransaction

Producer = Literal["arrow", "librdkafka"]
PRODUCERS: tuple[Producer, ...] = ("arrow", "librdkafka")


class Writer(Protocol):
    """One transaction after the other: ``begin`` → ``write`` … → ``prepare``, or ``abort``."""

    def begin(self, transactional_id: str | None, timeout_ms: int) -> None:
        """Start a transaction in name only; None: write idempotently without one."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Send rows; an error can come from a later call, after it only ``abort`` is of use."""

    def prepare(self) -> WrittenTransaction | None:
        """Wait until every row is acknowledged and let go; None if there was no row."""

    def abort(self, prepared: TransactionIdentity | None = None) -> None:
        """Abort what was begun and not prepared, none is no error; and ``prepared``."""


def check_importable(producer: Producer) -> None:
    """Refuse a producer whose library is not installed where this runs.

    Raises:
        ConfigurationError: confluent-kafka cannot be imported.
    """
    if producer != "librdkafka":
        return
    try:
        importlib.import_module("confluent_kafka")
    except ImportError as error:
        raise ConfigurationError(
            f"producer='librdkafka' needs confluent-kafka, which cannot be imported here: {error}. "
            "Install confluent-kafka>=2.16 on the driver and on every executor, or use "
            "producer='arrow'."
        ) from error


def open_writer(
    settings: KafkaSettings, *, producer: Producer, topic: str | None, compression: str
) -> Writer:
    """A writer with connections of its own.

    Raises:
        ConfigurationError: no such compression, or the producer's library is not installed.
        KafkaError: no broker answers, or it does not accept these credentials.
    """
    from airflow_eos.kafka.client.connection import ConnectionPool

    check_importable(producer)
    if producer == "librdkafka":
        from airflow_eos.kafka.librdkafka import LibrdkafkaWriter

        return LibrdkafkaWriter(
            ConnectionPool(settings), settings, topic=topic, compression=compression
        )
    from airflow_eos.kafka.producer.writer import TransactionalWriter

    return TransactionalWriter(ConnectionPool(settings), topic=topic, compression=compression)
