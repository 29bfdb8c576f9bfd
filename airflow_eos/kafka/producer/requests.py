"""Produce requests, and what each of their error codes means for a record batch.

Codes and retriability follow Kafka's Java producer (``org.apache.kafka.clients.producer.internals
.Sender`` and ``TransactionManager``).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_eos.errors import (
    FencedError,
    KafkaError,
    TopicError,
    TransactionError,
)
from airflow_eos.kafka.client import faults
from airflow_eos.kafka.client.deadline import Deadline
from airflow_eos.kafka.client.fetch import batch_headers
from airflow_eos.kafka.client.messages import InitProducerIdRequest, ProduceRequest
from airflow_eos.kafka.records.decoding import rows_of

if TYPE_CHECKING:
    from airflow_eos.kafka.client.wire import Wire
    from airflow_eos.kafka.records.decoding import Row

_ALL_REPLICAS = -1
_INIT_TIMEOUT_S = 60.0
_BROKER_TIMEOUT_MS = 25_000
"""How long the broker waits for its replicas; less than our own wait for the answer."""
_IMPLICIT_ADD_VERSION = 12
"""From here on a produce request adds its partitions to the transaction by itself (KIP-890);
only where the cluster's ``transaction.version`` is 2. Version 13 names topics by ids."""

_OUT_OF_ORDER_SEQUENCE = 45
_DUPLICATE_SEQUENCE = 46
_FENCING = {faults.INVALID_PRODUCER_EPOCH, faults.PRODUCER_FENCED}
_OF_A_TOPIC = {faults.INVALID_TOPIC, faults.TOPIC_AUTHORIZATION_FAILED}
# Kafka does not mark these as retriable in general; while a transaction is being opened they are:
# the one before under the same id is still writing its markers, or its coordinator moves.
_PASSES = {faults.CONCURRENT_TRANSACTIONS}


class Fate(enum.Enum):
    """What an answer means for one record batch."""

    DONE = "done"
    RESEND = "resend"
    OUT_OF_ORDER = "out of order"
    """Resend it if an earlier batch of the partition is unacknowledged; else rows are lost."""
    REFUSED = "refused"


class PartitionResponse(NamedTuple):
    """The broker's word on one partition of a produce request.

    ``base_offset`` is -1 where the broker does not know: it has the batch already, from a request
    whose answer was lost, and no longer remembers where.
    """

    topic: str
    partition: int
    code: int
    base_offset: int
    message: str
    row: int | None = None
    """Of the record batch, the first that is refused, where the broker says which."""

    @property
    def fate(self) -> Fate:
        """What to do about it."""
        if self.code in (faults.NONE, _DUPLICATE_SEQUENCE):
            return Fate.DONE
        if self.code == _OUT_OF_ORDER_SEQUENCE:
            return Fate.OUT_OF_ORDER
        if self.code in _PASSES or faults.is_retriable(self.code):
            return Fate.RESEND
        return Fate.REFUSED

    def error(self, payload: bytes) -> KafkaError:
        """The refusal of a record batch as the error to raise."""
        where = f"writing to partition {self.partition} of topic {self.topic!r}"
        if self.code in _FENCING:
            return FencedError(
                f"Kafka answered {faults.error_name(self.code)} {where}: somebody else took the "
                "transactional id, or the broker aborted the transaction because its timeout "
                "passed while it was being written."
            )
        if faults.of_a_row(self.code):
            row = None if self.row is None else _row_of(payload, self.row)
            return faults.row_refused(
                self.code,
                where,
                row="" if row is None else f"with key {row.key!r:.80}",
                timestamp_ms=None if row is None else row.timestamp_ms,
                said=self.message,
            )
        if self.code == _OUT_OF_ORDER_SEQUENCE:
            return TransactionError(
                f"Kafka answered {faults.error_name(self.code)} {where}, although all earlier rows "
                "were acknowledged: the partition has lost rows, as after an unclean election."
            )
        kind = TopicError if self.code in _OF_A_TOPIC else TransactionError
        acl = f"Write on Topic {self.topic!r}"
        return faults.refusal(self.code, where, acl=acl, otherwise=kind)


def produce_request(
    transactional_id: str | None,
    payloads: Iterable[tuple[str, int, bytes]],
    *,
    implicit_add: bool,
) -> Any:
    """One request for payloads of (topic, partition, record batch), one batch a partition."""
    topic_data = ProduceRequest.TopicProduceData
    by_topic: dict[str, list[Any]] = {}
    for topic, partition, payload in payloads:
        data = topic_data.PartitionProduceData(index=partition, records=payload)
        by_topic.setdefault(topic, []).append(data)
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=_ALL_REPLICAS,
        timeout_ms=_BROKER_TIMEOUT_MS,
        topic_data=[topic_data(name=t, partition_data=p) for t, p in by_topic.items()],
        max_version=_IMPLICIT_ADD_VERSION if implicit_add else _IMPLICIT_ADD_VERSION - 1,
    )


def partition_responses(response: Any) -> Iterable[PartitionResponse]:
    """What a produce response says, partition by partition."""
    for topic in response.responses:
        for part in topic.partition_responses:
            details = [part.error_message] if part.error_message else []
            refused = part.record_errors or ()
            details += [e.batch_index_error_message or "" for e in refused][:3]
            yield PartitionResponse(
                topic.name,
                part.index,
                part.error_code,
                part.base_offset,
                "; ".join(details),
                refused[0].batch_index if refused else None,
            )


def _row_of(payload: bytes, index: int) -> Row | None:
    """A row of a record batch that was sent; None where it has none of that number."""
    rows = (row for batch in batch_headers(payload) for row in rows_of(batch))
    return next(islice(rows, index, None), None)


def idempotent_producer(wire: Wire) -> tuple[int, int]:
    """A new producer id and its epoch, without a transaction: any broker hands them out.

    Raises:
        KafkaError: not allowed, or not within a minute.
    """
    deadline = Deadline(_INIT_TIMEOUT_S)
    while True:
        request = InitProducerIdRequest(
            transactional_id=None,
            transaction_timeout_ms=2**31 - 1,
            producer_id=-1,
            producer_epoch=-1,
            max_version=5,
        )
        answer = wire.request(request)
        if answer.error_code == faults.NONE:
            return answer.producer_id, answer.producer_epoch
        if not faults.is_retriable(answer.error_code) or not deadline.pause():
            raise faults.refusal(
                answer.error_code,
                "while asking for a producer id",
                acl="IdempotentWrite on Cluster, or Write on the topic",
                otherwise=KafkaError,
            )
