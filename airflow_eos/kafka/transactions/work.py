"""A transaction as prepared work, and back: what of a decision only Kafka reads.

The key is ``<transactional id>-<producer id>-<producer epoch>``; every transaction begins with
InitProducerId, which raises the epoch, so no key is ever used again. The detail holds the ranges
that were written, the first of which is the witness.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from airflow_eos.errors import CheckpointFormatError, ConfigurationError
from airflow_eos.kafka.transactions.identity import (
    Int32,
    OffsetRange,
    OpenTransaction,
    PreparedTransaction,
    TransactionIdentity,
)
from airflow_eos.protocol.decision import OpenWork, PreparedWork, WorkIdentity

KIND = "kafka"
_MOST_INT64, _MOST_INT16 = 2**63 - 1, 2**15 - 1  # as wide as Kafka's protocol has them
_KEY = re.compile(r"(.+)-([0-9]{1,19})-([0-9]{1,5})", re.ASCII)


class _Detail(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    written: Annotated[tuple[OffsetRange, ...], msgspec.Meta(min_length=1)]


def key_of(identity: TransactionIdentity) -> str:
    """The key under which decisions name the transaction."""
    return f"{identity.transactional_id}-{identity.producer_id}-{identity.producer_epoch}"


def named(identity: TransactionIdentity, participant: str) -> WorkIdentity:
    """The transaction as decisions name it."""
    return WorkIdentity(KIND, participant, key_of(identity))


def transaction_of(work: WorkIdentity) -> TransactionIdentity:
    """The transaction that is named.

    Raises:
        ConfigurationError: the key is none of Kafka's.
    """
    found = _KEY.fullmatch(work.key) if work.kind == KIND else None
    if found is None or int(found[2]) > _MOST_INT64 or int(found[3]) > _MOST_INT16:
        raise ConfigurationError(
            f"{work} names no transaction: expected "
            "<prefix>-eos-<task>-<attempt>-<producer id>-<producer epoch>."
        )
    return TransactionIdentity(found[1], int(found[2]), int(found[3]))


def as_work(transaction: PreparedTransaction, participant: str) -> PreparedWork:
    """What a decision keeps of a prepared transaction."""
    return PreparedWork(
        kind=KIND,
        participant=participant,
        key=key_of(transaction.identity),
        rows=transaction.rows,
        fingerprint=transaction.fingerprint,
        opened_at_ms=transaction.opened_at_ms,
        timeout_ms=transaction.timeout_ms,
        detail={"written": [msgspec.to_builtins(each) for each in transaction.written]},
    )


def as_transaction(work: PreparedWork) -> PreparedTransaction:
    """What :func:`as_work` was made of.

    Raises:
        CheckpointFormatError: the detail says nothing that Kafka understands.
    """
    try:
        identity = transaction_of(work.identity)
        return PreparedTransaction(
            transactional_id=identity.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            written=msgspec.convert(work.detail, _Detail).written,
            rows=work.rows,
            fingerprint=work.fingerprint,
            opened_at_ms=work.opened_at_ms,
            timeout_ms=msgspec.convert(work.timeout_ms, Int32),
        )
    except (msgspec.ValidationError, ConfigurationError) as error:
        raise CheckpointFormatError(
            f"The decision about {work.identity} is not Kafka's: {error}. "
            "Nothing was guessed. Restore the decision from a copy of the checkpoint."
        ) from error


def as_open_work(listed: OpenTransaction, participant: str) -> OpenWork:
    """What recovery sees of a listed transaction."""
    return OpenWork(
        kind=KIND,
        participant=participant,
        key=key_of(listed.identity),
        opened_at_ms=listed.started_at_ms,
        timeout_ms=listed.timeout_ms,
        places=tuple(f"{topic}/{partition}" for topic, partition in listed.partitions),
    )
