"""One producer of librdkafka for one transaction: rows out, delivery reports in, then let go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException, Producer

from airflow_eos.errors import ConfigurationError, RowError, TransactionError
from airflow_eos.kafka.librdkafka.faults import translated
from airflow_eos.kafka.librdkafka.reports import Reports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from airflow_eos.errors import KafkaError, TimeoutBudgetError
    from airflow_eos.kafka.client.settings import KafkaSettings
    from airflow_eos.kafka.librdkafka.messages import Message
    from airflow_eos.kafka.transactions.identity import OffsetRange

_MAX_BATCH_BYTES = 1_000_000
_MAX_QUEUE_KIB = 64 * 1024
_MOST_BYTES = 1_000_000_000
"""The highest that message.max.bytes takes: it is compared before compression, the topic's after;
the rows have been compared with the topic's by then."""
_LINGER_MS = 20
_SOCKET_TIMEOUT_MS = 30_000
_SERVE_S = 0.1


def producer_config(
    settings: KafkaSettings,
    *,
    transactional_id: str | None,
    timeout_ms: int,
    compression: str,
    batch_bytes: int,
    delivery_timeout_s: float,
) -> dict[str, Any]:
    """The producer's configuration: the user's, over our tuning, under what the protocol needs."""
    tuning = {
        "linger.ms": _LINGER_MS,
        "batch.num.messages": 100_000,
        "queue.buffering.max.kbytes": _MAX_QUEUE_KIB,
        # librdkafka would make it the transaction's timeout: 15 min for a lost connection.
        "socket.timeout.ms": min(_SOCKET_TIMEOUT_MS, timeout_ms),
    }
    needed: dict[str, Any] = {
        "enable.idempotence": True,
        "acks": "all",
        # Java's: a key goes where any other client sends it. librdkafka's own default is CRC32.
        "partitioner": "murmur2_random",
        "compression.type": compression,
        "batch.size": min(batch_bytes, _MAX_BATCH_BYTES),
        "message.max.bytes": _MOST_BYTES,
        "message.timeout.ms": int(delivery_timeout_s * 1000),
    }
    if transactional_id is not None:
        needed |= {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            # librdkafka refuses one above the transaction's.
            "message.timeout.ms": min(int(delivery_timeout_s * 1000), timeout_ms),
        }
    return {**tuning, **settings.librdkafka(), **needed}


class TransactionalProducer:
    """The rows of one transaction, or of none, on their way through a producer of their own.

    Raises:
        ConfigurationError: librdkafka does not take the configuration.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._transactional_id: str | None = config.get("transactional.id")
        self._reports = Reports()
        self.batch_bytes: int = config["batch.size"]
        try:
            self._producer: Producer | None = Producer(config | {"on_delivery": self._reports})
        except KafkaException as error:
            raise ConfigurationError(
                f"librdkafka does not take these settings: {error.args[0].str()}. Correct "
                "kafka_config."
            ) from error

    def take_id(self, timeout_s: float) -> None:
        """Fence whoever held the transactional id and abort what it left open."""
        try:
            self._live.init_transactions(timeout_s)
        except KafkaException as error:
            raise self._translated(error.args[0], "while taking") from error

    def begin(self) -> None:
        """Let the rows that follow be of a transaction."""
        self._live.begin_transaction()

    def send(self, messages: Iterable[Message]) -> None:
        """Hand rows over; waits while librdkafka's queue is full.

        Raises:
            FencedError, RowError, TopicError, TransactionError: refused for good.
            KafkaUnavailableError: not delivered within the delivery timeout.
        """
        producer = self._live
        for topic, key, value, partition, timestamp, headers in messages:
            while True:
                try:
                    producer.produce(
                        topic,
                        value=value,
                        key=key,
                        partition=partition,
                        timestamp=timestamp,
                        headers=headers,
                    )
                    break
                except BufferError:
                    self._make_room(key)
                except KafkaException as error:
                    self._serve(producer.poll, 0)
                    self._refuse_failed()
                    raise self._translated(error.args[0], "while writing under") from error
        self._serve(producer.poll, 0)

    def deliver(self) -> None:
        """Wait until every row is acknowledged; errors as of :meth:`send`."""
        while self._serve(self._live.flush, 1.0):  # message.timeout.ms ends it
            pass
        self._refuse_failed()

    def written(self) -> tuple[OffsetRange, ...]:
        """The offsets of what was acknowledged, partition by partition."""
        return self._reports.ranges()

    def abort(self, timeout_s: float) -> None:
        """Drop what is not sent and end the transaction with abort.

        Raises:
            KafkaError: not done, or not by this producer any more.
        """
        if self._transactional_id is not None:
            self._serve(self._live.abort_transaction, timeout_s)
            return
        self._live.purge()
        self._serve(self._live.flush, timeout_s)

    def let_go(self) -> None:
        """Drop the producer and leave its transaction as it is.

        ``close()`` and ``with`` would abort it. The destructor ends no transaction: it calls
        ``rd_kafka_destroy`` (``Producer_dealloc`` in confluent-kafka's Producer.c), which closes
        the connections. Nothing else refers to the producer, so this runs it.
        """
        self._producer = None

    @property
    def _live(self) -> Producer:
        if self._producer is None:
            raise ConfigurationError("This producer was let go: begin another transaction.")
        return self._producer

    def _make_room(self, key: Any) -> None:
        """Serve reports until the queue has room."""
        if not len(self._live):
            raise RowError(
                f"the row with key {key!r:.60} is larger than librdkafka's whole queue: raise "
                "queue.buffering.max.kbytes in kafka_config, or send less in one row"
            )
        self._serve(self._live.poll, _SERVE_S)

    def _serve(self, waiting: Callable[[float], Any], timeout_s: float) -> Any:
        """Call what runs the callbacks; librdkafka's fatal errors come out of it as exceptions.

        confluent-kafka raises them within the one callback and calls the next one all the same:
        CPython makes a SystemError of that, with the true one as its cause.
        """
        try:
            return waiting(timeout_s)
        except (KafkaException, SystemError) as error:
            cause: BaseException | None = error
            while isinstance(cause, SystemError):
                cause = cause.__cause__
            self._refuse_failed()
            if not isinstance(cause, KafkaException):
                raise
            raise self._translated(cause.args[0], "while writing under") from error

    def _refuse_failed(self) -> None:
        if self._reports.failure is not None:
            error, topic, partition = self._reports.failure
            where = f"while writing to partition {partition} of topic {topic!r}"
            raise translated(error, where, acl=f"Write on Topic {topic!r}")
        held_against = self._transaction_error()
        if held_against is not None:
            raise self._translated(held_against, "while writing under")

    def _transaction_error(self) -> Code | None:
        """Why the transaction cannot go on, if so.

        librdkafka keeps the reason and tells it to whoever calls a transactional function that
        does not fit (``rd_kafka_txn_require_states0``). To begin a second time is one that does
        no harm: in a transaction without a fault it is refused with _STATE.
        """
        if self._transactional_id is None:
            return None
        try:
            self._live.begin_transaction()
        except KafkaException as error:
            reason: Code = error.args[0]
            return None if reason.code() == Code._STATE else reason  # noqa: SLF001
        raise TransactionError(
            f"librdkafka knows of no transaction under {self._transactional_id!r} although one "
            "was begun; the task writes its rows again."
        )

    def _translated(self, error: Code, doing: str) -> KafkaError | TimeoutBudgetError:
        if self._transactional_id is None:
            return translated(error, "while writing", acl="IdempotentWrite on Cluster")
        named = f"{doing} transactional id {self._transactional_id!r}"
        return translated(error, named, acl=f"Write on TransactionalId {self._transactional_id!r}")
