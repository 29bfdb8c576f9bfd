"""The one transaction that a writer writes, and what it lets go of; the same for every writer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from airflow_eos.errors import ConfigurationError, TransactionError
from airflow_eos.kafka.transactions.identity import PreparedTransaction

if TYPE_CHECKING:
    from airflow_eos.kafka.transactions.identity import OffsetRange, TransactionIdentity

DELIVERY_TIMEOUT_S = 120.0
"""How long rows may fail in passing (a leader moves, a broker restarts) before a writer raises."""


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

    def prepared(self, fingerprint: str) -> PreparedTransaction | None:
        """What a decision names, with the content of its rows; None without a transaction."""
        if self.identity is None:
            return None
        return PreparedTransaction(
            transactional_id=self.identity.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            written=self.written,
            rows=self.rows,
            fingerprint=fingerprint,
            opened_at_ms=self.opened_at_ms,
            timeout_ms=self.timeout_ms,
        )


@dataclass(slots=True)
class PendingTransaction:
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


_Pending = TypeVar("_Pending", bound=PendingTransaction)


class TransactionSlot(Generic[_Pending]):
    """A writer's place for its one transaction."""

    def __init__(self) -> None:
        self._pending: _Pending | None = None

    def begin(self, pending: _Pending) -> None:
        """Take the place.

        Raises:
            ConfigurationError: the transaction before was neither prepared nor aborted.
        """
        if self._pending is not None:
            raise ConfigurationError(
                f"This writer still writes {self._pending.transactional_id!r}: "
                "prepare or abort it before the next one begins."
            )
        self._pending = pending

    def current(self) -> _Pending:
        """The transaction that is being written.

        Raises:
            ConfigurationError: none has begun.
        """
        if self._pending is None:
            raise ConfigurationError("No transaction has begun: call begin() first.")
        return self._pending

    def release(self) -> _Pending | None:
        """Free the place; what was in it, if anything."""
        pending, self._pending = self._pending, None
        return pending


def unknown_offsets(topic: str, partition: int) -> TransactionError:
    """Rows were acknowledged without the offset that a promise has to name."""
    return TransactionError(
        f"The offsets of the rows in partition {partition} of topic {topic!r} are not known: the "
        "answer that told them was lost, and the broker has forgotten them. The task writes its "
        "rows again."
    )
