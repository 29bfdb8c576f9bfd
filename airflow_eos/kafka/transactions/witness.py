"""The second witness of how far a prefix has delivered: its ids' coordinators, and the log.

The first one is the topic of prefixes. Where that was deleted, an older copy of a checkpoint looks
like the newest one. But a coordinator keeps the producer id and epoch of an id's newest
transaction, and what a newer copy delivered stands in the output behind the rows that this one
promised:

======================================================  =======================================
a coordinator, of an id under the prefix                says
======================================================  =======================================
committed the promised producer id and epoch, or has    this copy is the newest: agrees
it open, or aborted it
committed another one, of an id that was promised       another copy has gone on: later
aborted a later one, or has it open; was not promised;  nothing: an attempt, or an old batch
is forgotten
======================================================  =======================================

======================================================  =======================================
the log behind the promised rows                        says
======================================================  =======================================
committed rows of a producer of these ids               another copy has gone on: later
none, and it reaches back to the promised rows          this copy is the newest: agrees
it begins later, ends before, or is gone                nothing
======================================================  =======================================
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from airflow_eos.core.checkpoint.topics import TopicPartition
from airflow_eos.errors import KafkaUnavailableError, TopicError
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.errors import Deadline
from airflow_eos.kafka.client.offsets import EARLIEST, LATEST, positions
from airflow_eos.kafka.client.reading import OffsetSpan, read_span
from airflow_eos.kafka.transactions.identity import (
    PreparedTransaction,
    TransactionIdentity,
    belongs_to_prefix,
    transactional_id_of,
)
from airflow_eos.kafka.transactions.listing import (
    COMMITTED,
    described,
    listed_ids,
    raised_by_a_commit,
)

_COMMITS = (COMMITTED, "PrepareCommit")
_LAST_EPOCH = 2**15 - 2
"""From here on the end of a transaction gives its id another producer id, and epoch 0."""


class Sight(enum.Enum):
    """What one witness tells of a checkpoint's newest promise."""

    AGREES = enum.auto()
    LATER = enum.auto()
    SILENT = enum.auto()


def later_than(
    wire: ConnectionPool,
    prefix: str,
    promised: Sequence[PreparedTransaction],
) -> str:
    """Return what was delivered under ``prefix`` after ``promised``, for people; empty: nothing.

    Args:
        promised: what the decisions that stand in the checkpoint name, in their order.

    Raises:
        KafkaUnavailableError: neither witness tells, or does not answer.
        TransactionError, TopicError: the ids may not be described, or the output not be read.
    """
    deadline = Deadline(60.0)
    wire.cluster.coordinators([transactional_id_of(prefix, 0, 0)], timeout_s=deadline.remaining)
    wire.cluster.require_coordinators(timeout_s=deadline.remaining)
    pattern = f"{re.escape(prefix)}-eos-[0-9]+-[0-9]+"
    ids = {i for i in listed_ids(wire, pattern, deadline) if belongs_to_prefix(i, prefix)}
    states = described(wire, ids, deadline)
    named = {each.transactional_id: each.identity for each in promised}
    heard = False
    for state in states:
        sight = sight_of(state, named.get(state.transactional_id), raised_by_a_commit(wire))
        if sight is Sight.LATER:
            found = TransactionIdentity(
                state.transactional_id, state.producer_id, state.producer_epoch
            )
            return f"its coordinator has committed {found}"
        heard |= sight is Sight.AGREES
    producers = {s.producer_id for s in states} | {t.producer_id for t in promised}
    for tp, end in behind(promised).items():
        sight, what = _in_the_log(wire, tp, end, producers, promised, deadline)
        if sight is Sight.LATER:
            return what
        heard |= sight is Sight.AGREES
    if heard or not (states or promised):
        return ""
    raise KafkaUnavailableError(
        f"Whether anything was delivered under the prefix {prefix!r} after what this checkpoint "
        "promised is not known: no coordinator tells of the ids that it promised last, and the "
        "log of the output does not reach back to their rows."
    )


def sight_of(state: Any, named: TransactionIdentity | None, raised: Collection[int]) -> Sight:
    """Return what a coordinator's description of an id says of its newest promised transaction."""
    if named is None:
        return Sight.SILENT
    above = state.producer_epoch - named.producer_epoch
    is_commit = state.transaction_state in _COMMITS
    # Each transaction takes an epoch, so the one after next is the first that may hide a commit.
    if state.producer_id == named.producer_id and above in (raised if is_commit else (0, 1)):
        return Sight.AGREES
    if not is_commit:
        return Sight.SILENT
    return Sight.SILENT if named.producer_epoch >= _LAST_EPOCH else Sight.LATER


def behind(promised: Sequence[PreparedTransaction]) -> Mapping[TopicPartition, int]:
    """Return, for each partition, the offset behind the last promised row."""
    ends: dict[TopicPartition, int] = {}
    for at in (at for each in promised for at in each.written):
        tp = at.tp
        ends[tp] = max(ends.get(tp, 0), at.last + 1)
    return ends


def _in_the_log(
    wire: ConnectionPool,
    tp: TopicPartition,
    end: int,
    producers: Collection[int],
    promised: Sequence[PreparedTransaction],
    deadline: Deadline,
) -> tuple[Sight, str]:
    known = {(each.producer_id, each.producer_epoch) for each in promised}
    try:
        first = positions(wire, [tp], EARLIEST)[tp]
        until = positions(wire, [tp], LATEST)[tp]
    except TopicError:
        if wire.cluster.find_leaders(tp[0], refresh=True) is None:
            return Sight.SILENT, ""
        raise
    span = OffsetSpan(*tp, first=max(first, end), until=until)
    for batches in read_span(wire, span, stalled_s=deadline.remaining):
        for each in batches:
            whose = each.producer_id, each.producer_epoch
            if each.producer_id in producers and whose not in known:
                return Sight.LATER, (
                    f"{tp[0]}-{tp[1]} has rows of producer {whose[0]}, epoch {whose[1]}, "
                    f"from offset {each.base_offset} on, behind the last promised one"
                )
        if deadline.expired:
            raise KafkaUnavailableError(
                f"Whether {span} has rows of a newer copy could not be read within {deadline}."
            )
    return (Sight.AGREES if first <= end <= until else Sight.SILENT), ""
