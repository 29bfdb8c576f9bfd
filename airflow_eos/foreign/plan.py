"""What is to become of Flink's dangling transactions: facts in, plan out; no I/O."""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING

import msgspec

from airflow_eos.kafka.transactions.identity import TransactionIdentity

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_eos.foreign.flink_state import FlinkCheckpoint
    from airflow_eos.kafka.transactions.identity import OpenTransaction

_COMMITTED = frozenset({"PrepareCommit", "CompleteCommit"})
_ABORTED = frozenset({"PrepareAbort", "CompleteAbort", "PrepareEpochFence"})


class ForeignAction(enum.Enum):
    """What a plan does with one transaction."""

    COMMIT = "commit"
    """The checkpoint promises it, and it is open."""
    ABORT = "abort"
    """It is open under a prefix that a person named, and the checkpoint does not promise it."""
    COMMITTED = "committed"
    """The checkpoint promises it, and it is committed: nothing to do."""
    LOST = "lost"
    """The checkpoint promises it, and it cannot be committed, or nobody can tell."""
    LEAVE = "leave"
    """Not Flink's by its form, or of a prefix that nobody named: another program's business."""


class ForeignStep(msgspec.Struct, frozen=True):
    """One transaction, and what is to become of it.

    Times in milliseconds; 0 where it is not open.
    """

    action: ForeignAction
    transactional_id: str
    producer_id: int
    producer_epoch: int
    reason: str
    started_at_ms: int = 0
    places: tuple[tuple[str, int], ...] = ()

    @property
    def identity(self) -> TransactionIdentity:
        """The transaction, as Kafka knows it."""
        return TransactionIdentity(self.transactional_id, self.producer_id, self.producer_epoch)


class ForeignPlan(msgspec.Struct, frozen=True):
    """What is to become of each; the next one differs as soon as anything has moved on."""

    location: str
    checkpoint: int
    prefixes: tuple[str, ...]
    steps: tuple[ForeignStep, ...]

    def of(self, *actions: ForeignAction) -> tuple[ForeignStep, ...]:
        """The steps with one of these actions."""
        return tuple(step for step in self.steps if step.action in actions)


class CoordinatorState(msgspec.Struct, frozen=True):
    """What a coordinator says of a transactional id now."""

    state: str
    producer_id: int
    producer_epoch: int


def is_of_flink(transactional_id: str, prefix: str) -> bool:
    """Whether it has the form of a sink with this prefix: ``<prefix>-<subtask>-<number>``."""
    return re.fullmatch(re.escape(prefix) + "-[0-9]+-[0-9]+", transactional_id) is not None


def make_plan(
    location: str,
    checkpoint: FlinkCheckpoint,
    prefixes: Collection[str],
    opened: Mapping[OpenTransaction, str],
    told: Mapping[str, CoordinatorState],
) -> ForeignPlan:
    """Commit what is promised and open, abort what else is open under the prefixes.

    Args:
        location: of the checkpoint.
        checkpoint: what it promises.
        prefixes: that a person named.
        opened: everything open under the prefixes, and whose it is by the form of its id.
        told: of each promised transactional id; absent where its coordinator does not know it.
    """
    by_identity = {each.identity: each for each in opened}
    steps = [
        _promised(each, prefixes, by_identity.get(each), told.get(each.transactional_id))
        for each in checkpoint.promised
    ]
    for each, whose in opened.items():
        if each.identity in checkpoint.promised:
            continue
        flinks = any(is_of_flink(each.transactional_id, prefix) for prefix in prefixes)
        reason = f"not promised by checkpoint {checkpoint.number}" if flinks else f"of {whose}"
        steps.append(
            _step(
                ForeignAction.ABORT if flinks else ForeignAction.LEAVE, each.identity, reason, each
            )
        )
    order = list(ForeignAction)
    steps.sort(key=lambda step: (order.index(step.action), step.identity))
    return ForeignPlan(location, checkpoint.number, tuple(sorted(prefixes)), tuple(steps))


def _promised(
    promise: TransactionIdentity,
    prefixes: Collection[str],
    opened: OpenTransaction | None,
    told: CoordinatorState | None,
) -> ForeignStep:
    if not any(is_of_flink(promise.transactional_id, prefix) for prefix in prefixes):
        return _step(ForeignAction.LEAVE, promise, "promised; its prefix was not named")
    if opened is not None:
        return _step(ForeignAction.COMMIT, promise, "promised, and open", opened)
    if told is None:
        return _step(ForeignAction.LOST, promise, "its coordinator does not know it any more")
    # The end raises the epoch by one with transaction version 2, and so does every timeout.
    same = told.producer_id == promise.producer_id and told.producer_epoch in {
        promise.producer_epoch,
        promise.producer_epoch + 1,
    }
    if same and told.state in _COMMITTED:
        return _step(ForeignAction.COMMITTED, promise, "committed already")
    if same and told.state in _ABORTED:
        return _step(ForeignAction.LOST, promise, "aborted: by its timeout, or whoever took its id")
    found = f"{told.state}, producer {told.producer_id}, epoch {told.producer_epoch}"
    return _step(ForeignAction.LOST, promise, f"not known: its id has been used since ({found})")


def _step(
    action: ForeignAction,
    identity: TransactionIdentity,
    reason: str,
    opened: OpenTransaction | None = None,
) -> ForeignStep:
    return ForeignStep(
        action,
        identity.transactional_id,
        identity.producer_id,
        identity.producer_epoch,
        reason,
        opened.started_at_ms if opened else 0,
        opened.partitions if opened else (),
    )
