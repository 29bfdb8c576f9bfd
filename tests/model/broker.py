"""A broker as the tables of ``docs/protocol.md`` describe it: a coordinator and a log.

It knows nothing of decisions. Ending takes two moments, as in Kafka: the coordinator promises the
marker, then the marker is written; until then the transaction is neither open nor readable.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from airflow_eos.errors import FencedError
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.transactions.identity import NEVER_MS, TransactionIdentity

PARTITIONS = 2
Rows = tuple[str, ...]
Offer = Literal["not spoken", "refused", "offered"]
"""Whether the brokers open transactions that no timer ends: their version, and their setting."""


class State(enum.Enum):
    EMPTY = enum.auto()
    OPEN = enum.auto()
    COMMITTING = enum.auto()
    ABORTING = enum.auto()
    COMMITTED = enum.auto()
    ABORTED = enum.auto()


UNFINISHED = frozenset({State.OPEN, State.COMMITTING, State.ABORTING})
_ENDING = {State.COMMITTING: State.COMMITTED, State.ABORTING: State.ABORTED}


@dataclass(eq=False)
class Transaction:
    """One transaction; the last one of an id is also who holds the id."""

    identity: TransactionIdentity
    timeout_ms: int
    state: State = State.EMPTY
    rows: Rows = ()
    partition: int = 0
    first: int = -1
    last: int = -1
    marker: int = -1
    started_ms: int = 0
    timed_out: bool = False
    fenced: bool = False
    emptied: bool = False
    """Compacted: a batch of no records is left, and no word of how it ended."""

    @property
    def delivered(self) -> bool:
        """Readers see it, or will for certain."""
        return self.state in {State.COMMITTING, State.COMMITTED}


@dataclass
class Partition:
    start: int = 0
    end: int = 0
    batches: list[Transaction] = field(default_factory=list)

    @property
    def last_stable(self) -> int:
        return min((t.first for t in self.batches if t.state in UNFINISHED), default=self.end)


class Broker:
    """``on_end(transaction, how)`` is told before a transaction begins to end."""

    def __init__(self, version: int, on_end: Callable[[Transaction, str], None]) -> None:
        self.version = version
        self.now_ms = 0
        self.holders: dict[str, Transaction] = {}
        self.transactions: dict[TransactionIdentity, Transaction] = {}
        self.partitions = [Partition() for _ in range(PARTITIONS)]
        self.two_phase: Offer = "not spoken"
        self.forgot = False
        """Whether rows have passed retention: some outcomes may be unknown for ever."""
        self._on_end = on_end
        self._next_producer = 1000

    # --- what clients ask ---------------------------------------------------------------------

    def init(self, transactional_id: str, timeout_ms: int) -> tuple[int, TransactionIdentity]:
        """InitProducerId: an error code, and who holds the id from now on."""
        held = self.holders.get(transactional_id)
        if held is None:
            self._next_producer += 1
            identity = TransactionIdentity(transactional_id, self._next_producer, 0)
        else:
            if held.state is State.OPEN:
                self._end(held, State.ABORTING, "fenced")
                held.fenced = True
                return faults.CONCURRENT_TRANSACTIONS, held.identity
            if held.state in _ENDING:
                self._complete(held)
                return faults.CONCURRENT_TRANSACTIONS, held.identity
            # with version 2 every end has raised the epoch by itself (KIP-890)
            raised = 1 if self.version < 2 or held.state is State.EMPTY else 2
            epoch = held.identity.producer_epoch + raised
            identity = TransactionIdentity(transactional_id, held.identity.producer_id, epoch)
        self.holders[transactional_id] = Transaction(identity, timeout_ms)
        self.transactions[identity] = self.holders[transactional_id]
        return faults.NONE, identity

    def produce(self, identity: TransactionIdentity, partition: int, rows: Rows) -> Transaction:
        """All rows of a task, acknowledged; sent again they are the same rows."""
        held = self.holders.get(identity.transactional_id)
        if held is not None and held.identity == identity and not held.fenced:
            if held.state is State.OPEN:
                return held
            if held.state is State.EMPTY:
                log = self.partitions[partition]
                held.state, held.rows, held.partition = State.OPEN, rows, partition
                held.started_ms = self.now_ms
                held.first, held.last = log.end, log.end + len(rows) - 1
                log.end += len(rows)
                log.batches.append(held)
                return held
        raise FencedError(f"{identity} may no longer write")

    def end(self, identity: TransactionIdentity, *, commit: bool, version: int) -> int:
        """EndTxn: the table of the protocol, line by line."""
        held = self.holders.get(identity.transactional_id)
        if held is None or held.identity.producer_id != identity.producer_id:
            return faults.INVALID_PRODUCER_ID_MAPPING
        if held.identity != identity or held.fenced:
            return faults.PRODUCER_FENCED
        if held.state is State.OPEN:
            if commit:
                self._end(held, State.COMMITTING, "commit")
            else:
                self._end(held, State.ABORTING, "abort")
            return faults.NONE
        if held.state in _ENDING:
            self._complete(held)
            return faults.CONCURRENT_TRANSACTIONS
        if held.timed_out and version < 5:
            return faults.PRODUCER_FENCED
        if held.state is State.EMPTY:
            return faults.INVALID_TXN_STATE if commit or version < 5 else faults.NONE
        asked = State.COMMITTED if commit else State.ABORTED
        return faults.NONE if held.state is asked else faults.INVALID_TXN_STATE

    def ongoing(self) -> list[Transaction]:
        """What ListTransactions shows with the state filter Ongoing."""
        return [held for held in self.holders.values() if held.state is State.OPEN]

    def aborted_over(self, partition: int, offset: int) -> list[Transaction]:
        """The aborted transactions that a read_committed Fetch at ``offset`` speaks of."""
        return [
            t
            for t in self.partitions[partition].batches
            if t.state is State.ABORTED and t.marker >= offset and not t.emptied
        ]

    # --- what happens by itself ---------------------------------------------------------------

    def settle_down(self, partition: int | None = None) -> None:
        """Write the markers that were promised."""
        for transaction in list(self.transactions.values()):
            if transaction.state in _ENDING and partition in (None, transaction.partition):
                self._complete(transaction)

    def pass_time(self, ms: int) -> None:
        """Later: promised markers are written, and what has been open too long is aborted."""
        self.settle_down()
        self.now_ms += ms
        for transaction in self.ongoing():
            timed = transaction.timeout_ms != NEVER_MS
            if timed and transaction.started_ms + transaction.timeout_ms <= self.now_ms:
                self._end(transaction, State.ABORTING, "timeout")
                transaction.timed_out = True

    def expire_ids(self) -> None:
        """``transactional.id.expiration.ms`` has passed for every id that is idle."""
        for transactional_id, held in list(self.holders.items()):
            if held.state not in UNFINISHED:
                del self.holders[transactional_id]

    def pass_retention(self, *, of_untimed: bool = False) -> None:
        """Everything below the last stable offset is deleted; or what no timer ends, too."""
        self.forgot = True
        for log in self.partitions:
            held = [t for t in log.batches if t.state in UNFINISHED]
            held = [t for t in held if not of_untimed or t.timeout_ms != NEVER_MS]
            log.start = max(log.start, min((t.first for t in held), default=log.end))

    def compact(self) -> None:
        """Later rows of each key stand for all that has ended; nothing says how it did."""
        self.forgot = True
        for log in self.partitions:
            for transaction in log.batches:
                transaction.emptied |= (
                    transaction.marker >= 0 and transaction.last < log.last_stable
                )

    def set_back(self, ms: int) -> None:
        """Its clock: what is open began in the future then, and has the longer to go."""
        self.now_ms -= ms

    def _end(self, transaction: Transaction, state: State, how: str) -> None:
        self._on_end(transaction, how)
        transaction.state = state

    def _complete(self, transaction: Transaction) -> None:
        transaction.state = _ENDING[transaction.state]
        log = self.partitions[transaction.partition]
        transaction.marker = log.end
        log.end += 1
