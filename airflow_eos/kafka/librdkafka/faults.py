"""librdkafka's errors, said in the package's own words; codes below 0 are its own, not Kafka's."""

from __future__ import annotations

from confluent_kafka import KafkaError as Code

from airflow_eos.errors import (
    FencedError,
    KafkaError,
    KafkaUnavailableError,
    TimeoutBudgetError,
    TopicError,
    TransactionError,
)
from airflow_eos.kafka.client import faults

PURGED = {Code._PURGE_QUEUE, Code._PURGE_INFLIGHT}  # noqa: SLF001 - public, in spite of the name
"""Said of a row because of what became of its transaction: that is the error, not this."""
_FENCING = {Code._FENCED, Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_EPOCH}  # noqa: SLF001
_OF_A_TOPIC = {
    Code._UNKNOWN_TOPIC,  # noqa: SLF001
    Code._UNKNOWN_PARTITION,  # noqa: SLF001
    Code.UNKNOWN_TOPIC_OR_PART,
    Code.TOPIC_EXCEPTION,
}
_NOT_REACHED = {
    Code._MSG_TIMED_OUT,  # noqa: SLF001
    Code._TIMED_OUT,  # noqa: SLF001
    Code._TIMED_OUT_QUEUE,  # noqa: SLF001
    Code._TRANSPORT,  # noqa: SLF001
    Code._RESOLVE,  # noqa: SLF001
    Code._ALL_BROKERS_DOWN,  # noqa: SLF001
}
_NOT_ACCEPTED = {Code._AUTHENTICATION, Code._SSL}  # noqa: SLF001


def translated(error: Code, doing: str, *, acl: str) -> KafkaError | TimeoutBudgetError:
    """The error to raise.

    Args:
        error: what librdkafka reported.
        doing: what was asked, as in "while taking transactional id 'a'".
        acl: operation and resource that the request needs, as in "Write on Topic 'a'".
    """
    code = error.code()
    said = f"librdkafka reports {error.name()} {doing}: {error.str()}"
    if code in _FENCING:
        return FencedError(
            f"{said}. So somebody else took the transactional id, or the broker aborted the "
            "transaction because its timeout passed while it was being written."
        )
    if code == faults.INVALID_TRANSACTION_TIMEOUT:
        return TimeoutBudgetError(
            f"{said}. The transaction timeout is above the broker's transaction.max.timeout.ms "
            "(15 min unless set): lower the timeout or raise that."
        )
    if faults.of_a_row(code):
        # Of a record batch it tells the same of each row, so which one is refused is not known.
        return faults.row_refused(code, doing, said=f"{error.str()} (librdkafka names no row)")
    if code in _OF_A_TOPIC:
        return TopicError(f"{said}. Create the topic, or correct its name or the partition.")
    if code in _NOT_ACCEPTED:
        return KafkaError(f"{said}. Check security.protocol, sasl.* and ssl.*.")
    if code in _NOT_REACHED or error.retriable():
        return KafkaUnavailableError(f"{said}. Check that the brokers run and can be reached.")
    if code > 0:
        return faults.refusal(code, doing, acl=acl, otherwise=TransactionError)
    return TransactionError(f"{said}.")
