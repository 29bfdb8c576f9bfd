"""What a person ruled about promised transactions whose outcome nobody can read any more.

One immutable object for each transaction, ``eos/rulings/<id>-<producer id>-<epoch>.json``,
created if absent: the first ruling stands for ever, because readers of it may already have acted.
Both recovery and the starting driver consult them; so this module imports no Kafka.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import msgspec

from airflow_eos.checkpoint.codec import decode, encode
from airflow_eos.checkpoint.paths import EOS
from airflow_eos.errors import ConfigurationError, DecisionNeededError
from airflow_eos.transactions import Outcome, TransactionIdentity, is_transactional_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_eos.checkpoint.store import CheckpointStore

RULINGS = f"{EOS}/rulings"


class Ruling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``outcome`` is COMMITTED (readers have the rows) or ABORTED (they do not: replay them)."""

    format_version: int = 1
    transaction: TransactionIdentity
    outcome: Outcome
    ruled_by: str
    ruled_at_ms: int
    nonce: str


def resolve(
    store: CheckpointStore,
    transaction: TransactionIdentity,
    outcome: Outcome,
    *,
    ruled_by: str = "a person",
) -> Ruling:
    """Record what became of ``transaction``; returns the ruling that stands.

    The caller makes sure that the log does not tell the outcome: ``recover --assume`` takes only
    transactions that a fresh plan ASKs about.

    Raises:
        ConfigurationError: The outcome is neither COMMITTED nor ABORTED, or the id is no name.
        DecisionNeededError: It was ruled the other way before.
        CheckpointFormatError: The ruling that stands there cannot be read.
    """
    if outcome not in (Outcome.COMMITTED, Outcome.ABORTED):
        raise ConfigurationError(
            f"A ruling says committed or aborted, not {outcome.value!r}: look at the output topic."
        )
    ruling = Ruling(
        transaction=transaction,
        outcome=outcome,
        ruled_by=ruled_by,
        ruled_at_ms=time.time_ns() // 1_000_000,
        nonce=uuid.uuid4().hex,
    )
    if store.create(_path(transaction), encode(ruling)):
        return ruling
    standing = _read(store, transaction)
    if standing is None or standing.outcome is not outcome:
        found = "gone again" if standing is None else f"{standing.outcome.value!r}"
        raise DecisionNeededError(
            f"{transaction} was ruled before, and that ruling is {found}, not {outcome.value!r}. "
            "A ruling stands for ever, because the pipeline may have acted on it. If it was "
            f"wrong, stop the pipeline and look at {store.location}/{_path(transaction)}."
        )
    return standing


def read_rulings(
    store: CheckpointStore, transactions: Iterable[TransactionIdentity]
) -> Mapping[TransactionIdentity, Outcome]:
    """Return the outcomes that a person ruled, for those of ``transactions`` that have one.

    Ask only for what the log does not tell: one read of the store each.
    """
    found = {}
    for transaction in transactions:
        ruling = _read(store, transaction)
        if ruling is not None:
            found[transaction] = ruling.outcome
    return found


def _read(store: CheckpointStore, transaction: TransactionIdentity) -> Ruling | None:
    path = _path(transaction)
    data = store.get(path)
    if data is None:
        return None
    ruling = decode(data, Ruling, f"{store.location}/{path}")
    if ruling.transaction != transaction or ruling.outcome is Outcome.OPEN:
        raise DecisionNeededError(
            f"{store.location}/{path} speaks of {ruling.transaction} ({ruling.outcome.value}): it "
            "was copied or renamed. Nothing was assumed; remove it and rule again."
        )
    store.make_durable(path)
    return ruling


def _path(transaction: TransactionIdentity) -> str:
    if not is_transactional_id(transaction.transactional_id):
        raise ConfigurationError(
            f"{transaction.transactional_id!r} is no transactional id of this package: expected "
            "<prefix>-<task>-<attempt>."
        )
    return (
        f"{RULINGS}/{transaction.transactional_id}"
        f"-{transaction.producer_id}-{transaction.producer_epoch}.json"
    )
