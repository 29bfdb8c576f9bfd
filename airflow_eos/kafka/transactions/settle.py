"""Settling a COMMIT decision: every transaction ended with commit, every outcome known."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from airflow_eos.errors import KafkaUnavailableError
from airflow_eos.failpoints import failpoint
from airflow_eos.kafka.client.errors import Deadline
from airflow_eos.kafka.transactions.coordinator import EndResult, end_transactions
from airflow_eos.kafka.transactions.identity import PreparedTransaction, TransactionIdentity
from airflow_eos.kafka.transactions.outcomes import outcomes
from airflow_eos.protocol.decision import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_eos.kafka.client.connection import ConnectionPool

_SHORTEST_ROUND_S = 1.0
"""So that the last round before the deadline still asks; it may end that much late."""


def settle(
    wire: ConnectionPool,
    transactions: Sequence[PreparedTransaction],
    *,
    deadline_s: float = 60.0,
) -> dict[TransactionIdentity, Outcome]:
    """Commit what a decision names; returns COMMITTED, ABORTED or UNKNOWN for each, never OPEN.

    May run any number of times, in any number of processes. Where the coordinator cannot tell,
    the log is asked; where the log cannot tell yet, both are asked again.

    Raises:
        KafkaUnavailableError: not all outcomes are known after ``deadline_s``.
        TransactionError, TopicError: Kafka refused for good; see the message.
    """
    deadline = Deadline(deadline_s)
    settled: dict[TransactionIdentity, Outcome] = {}
    if "EOS_FAILPOINTS" in os.environ and len(transactions) > 1:
        # All are ended together; only for a test or the demo is there a "between two of them".
        settled |= _settle_once(wire, transactions[:1], deadline)
        failpoint("settled-some")
    left = [t for t in transactions if t.identity not in settled]
    while left:
        settled |= _settle_once(wire, left, deadline)
        left = [t for t in left if t.identity not in settled]
        if left and not deadline.pause():
            where = left[0].witness
            raise KafkaUnavailableError(
                f"{len(left)} of {len(transactions)} transactions are still open after "
                f"{deadline}, as {left[0].identity}: their own end, or another transaction "
                f"that began before them in partition {where.partition} of topic "
                f"{where.topic!r}, is not through yet. Ask again; where that does not help, "
                f"airflow-eos hanging {where.topic} shows whether a broker has lost track of one."
            )
    return settled


def _settle_once(
    wire: ConnectionPool,
    transactions: Sequence[PreparedTransaction],
    deadline: Deadline,
) -> dict[TransactionIdentity, Outcome]:
    """The outcomes known after one round; what the log calls open is left out."""
    remaining_s = max(deadline.remaining, _SHORTEST_ROUND_S)
    identities = [t.identity for t in transactions]
    ended = end_transactions(wire, identities, commit=True, deadline_s=remaining_s)
    unclear = [t for t in transactions if ended[t.identity] is EndResult.LOOK]
    settled = {i: Outcome.COMMITTED for i, result in ended.items() if result is EndResult.DONE}
    remaining_s = max(deadline.remaining, _SHORTEST_ROUND_S)
    looked = outcomes(wire, unclear, deadline_s=remaining_s)
    return settled | {i: o for i, o in looked.items() if o is not Outcome.OPEN}
