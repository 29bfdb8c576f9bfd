"""What every writer does, and the choice between them.

``arrow`` encodes record batches itself, ``librdkafka`` leaves that to confluent-kafka's producer.
Both refuse the same rows, leave the same transaction open and are ended by the same coordinator.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar

from airflow_eos.errors import ConfigurationError, TransactionError

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_eos.kafka.settings import KafkaSettings
    from airflow_eos.transactions import OffsetRange, TransactionIdentity

Producer = Literal["arrow", "librdkafka"]
PRODUCERS: tuple[Producer, ...] = ("arrow", "librdkafka")


@dataclass(frozen=True, slots=True)
class WrittenTransaction:
    """What a transaction wrote, acknowledged and not ended. Times in ms.

    ``identity`` is None where there was no transaction (at least once). ``written`` has one range
    a topic partition, never empty; other producers may have rows inside a range.
    """

    identity: TransactionIdentity | None
    written: tuple[OffsetRange, ...]
    rows: int
    opened_at_ms: int
    timeout_ms: int


@dataclass(slots=True)
class Begun:
    """The transaction that a writer writes; each writer adds by what its rows travel."""

    transactional_id: str | None
    timeout_ms: int
    rows: int = 0
    opened_at_ms: int = 0

    def written(
        self, identity: TransactionIdentity | None, ranges: tuple[OffsetRange, ...]
    ) -> WrittenTransaction:
        """What the writer lets go of."""
        return WrittenTransaction(identity, ranges, self.rows, self.opened_at_ms, self.timeout_ms)


_Begun = TypeVar("_Begun", bound=Begun)


class OneAtATime(Generic[_Begun]):
    """A writer's place for its one transaction."""

    def __init__(self) -> None:
        self._begun: _Begun | None = None

    def begin(self, begun: _Begun) -> None:
        """Take the place.

        Raises:
            ConfigurationError: the transaction before was neither prepared nor aborted.
        """
        if self._begun is not None:
            raise ConfigurationError(
                f"This writer still writes {self._begun.transactional_id!r}: "
                "prepare or abort it before the next one begins."
            )
        self._begun = begun

    def current(self) -> _Begun:
        """The transaction that is being written.

        Raises:
            ConfigurationError: none has begun.
        """
        if self._begun is None:
            raise ConfigurationError("No transaction has begun: call begin() first.")
        return self._begun

    def leave(self) -> _Begun | None:
        """Free the place; what was in it, if anything."""
        begun, self._begun = self._begun, None
        return begun


def unknown_offsets(topic: str, partition: int) -> TransactionError:
    """Rows were acknowledged without the offset that a promise has to name."""
    return TransactionError(
        f"The offsets of the rows in partition {partition} of topic {topic!r} are not known: the "
        "answer that told them was lost, and the broker has forgotten them. The task writes its "
        "rows again."
    )


class Writer(Protocol):
    """One transaction after the other: ``begin`` → ``write`` … → ``prepare``, or ``abort``."""

    def begin(self, transactional_id: str | None, timeout_ms: int) -> None:
        """Start a transaction in name only; None: write idempotently without one."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Send rows; an error can come from a later call, after it only ``abort`` is of use."""

    def prepare(self) -> WrittenTransaction | None:
        """Wait until every row is acknowledged and let go; None if there was no row."""

    def abort(self) -> None:
        """Abort what was begun and not prepared; none is no error."""


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
    from airflow_eos.kafka.wire import Wire

    check_importable(producer)
    if producer == "librdkafka":
        from airflow_eos.kafka.librdkafka_writer import LibrdkafkaWriter

        return LibrdkafkaWriter(Wire(settings), settings, topic=topic, compression=compression)
    from airflow_eos.kafka.writer import TransactionalWriter

    return TransactionalWriter(Wire(settings), topic=topic, compression=compression)
