"""What a batch promised and what of it is still missing; pure arithmetic on decisions.

The promise of a batch is its *first* COMMIT decision. Later COMMIT decisions of the same batch
name only what was missing, so that what is delivered is the union of all of them. Promised and
delivered are paired by content (rows and fingerprint, as a multiset) and never by task number,
which a restart may deal out anew.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from airflow_eos.checkpoint.decisions import Decision
    from airflow_eos.transactions import PreparedTransaction, TransactionIdentity


@dataclass(frozen=True, slots=True)
class Named:
    """A transaction with the decision that promised it."""

    transaction: PreparedTransaction
    batch_id: int
    attempt: int

    @property
    def identity(self) -> TransactionIdentity:
        """The id, producer id and epoch by which the broker knows this transaction."""
        return self.transaction.identity


@dataclass(frozen=True, slots=True)
class Missing:
    """What a batch still owes its readers."""

    transactions: int
    rows: int

    def __bool__(self) -> bool:
        return self.rows > 0


def named_by(decisions: Iterable[Decision]) -> tuple[Named, ...]:
    """Every transaction that a COMMIT decision names, in the order of the attempts."""
    return tuple(
        Named(transaction, decision.batch_id, decision.attempt)
        for decision in decisions
        # by name, not by the enum itself: this room stays free of the store's imports
        if decision.verdict.name == "COMMIT"
        for transaction in decision.transactions
    )


def missing(named: Sequence[Named], delivered: Collection[TransactionIdentity]) -> Missing:
    """Return the promise less what is ``delivered`` (identities, of any attempt).

    Rows are compared before fingerprints: where the parallelism changed between two attempts,
    the same rows are cut into other transactions, which no fingerprint pairs, and yet a full
    count means that nothing is missing, because a later decision names only what was missing.
    """
    if not named:
        return Missing(0, 0)
    first = min(entry.attempt for entry in named)
    promise = [entry.transaction for entry in named if entry.attempt == first]
    arrived = [entry.transaction for entry in named if entry.identity in delivered]
    rows = sum(each.rows for each in promise) - sum(each.rows for each in arrived)
    if rows <= 0:
        return Missing(0, 0)
    unpaired = Counter(each.content for each in promise)
    unpaired -= Counter(each.content for each in arrived)
    return Missing(transactions=unpaired.total(), rows=rows)
