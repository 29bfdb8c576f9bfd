"""What became of transactions, as the log itself tells it: docs/protocol.md, last table.

Each is asked at its witness, the offset of its first row in one partition, by one Fetch with
``isolation_level=read_committed``. The answer holds the last stable offset, the aborted
transactions that overlap what was read, and the record batch at the witness:

| what the leader answers                                          | outcome   |
|------------------------------------------------------------------|-----------|
| last stable offset at or before the witness                      | OPEN      |
| our batch there, our producer id among the aborted               | ABORTED   |
| our batch there, our producer id not among the aborted           | COMMITTED |
| another batch, an emptied one or none: compacted, or a new topic | UNKNOWN   |
| high watermark at or before the witness, or offset out of range  | see below |
| topic or partition gone                                          | UNKNOWN   |

No batch at all tells of compaction only where the leader reads the witness from its own disk. What
lies in remote storage comes later, and is asked for again.

A batch is ours by producer id *and* epoch. One that log compaction has emptied proves nothing:
its entry among the aborted may have gone with its rows. OPEN can also mean that *another*
transaction that began earlier in the partition is still open; it says "not known yet".

Our rows were acknowledged, so they were below the high watermark once. Where it is lower now, the
leader is asked where its log begins and ends. Does it hold the witness, then a replica in sync is
slow, or the leader new, and that passes: wait. Does it begin after the witness, the row is past
retention. Does it end before the witness for a while, then the topic was emptied or created anew,
or an unclean election has cut it off. A person is asked only in the last two cases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_eos.errors import KafkaUnavailableError
from airflow_eos.kafka.client import faults
from airflow_eos.kafka.client.deadline import Deadline
from airflow_eos.kafka.client.fetch import (
    READ_COMMITTED,
    batch_headers,
    fetch_request,
    only_partition,
)
from airflow_eos.kafka.client.log_ends import is_local, log_ends
from airflow_eos.kafka.transactions.identity import PreparedTransaction, TransactionIdentity
from airflow_eos.protocol.decision import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_eos.kafka.client.wire import Wire

_GRACE_S = 2.0
"""How long a log must end before the witness, so that it was not a former leader that answered."""


class _Hidden:
    """The answer shows nothing of what is at the witness."""


HIDDEN = _Hidden()


class _Nothing:
    """The answer is empty, though the witness may be read."""


NOTHING = _Nothing()


def outcomes(
    wire: Wire, transactions: Sequence[PreparedTransaction], *, deadline_s: float = 60.0
) -> dict[TransactionIdentity, Outcome]:
    """Ask the log about each, all in flight together; about 1 ms each and one batch of rows.

    Raises:
        TopicError: a topic may not be read.
        KafkaUnavailableError: some leader did not answer within ``deadline_s``.
    """
    deadline = Deadline(deadline_s)
    found: dict[TransactionIdentity, Outcome] = {}
    grace: dict[TransactionIdentity, Deadline] = {}
    left = list({t.identity: t for t in transactions}.values())
    refresh = False
    while left:
        waiting: list[PreparedTransaction] = []
        for transaction, answer in _ask(wire, left, refresh=refresh):
            outcome = answer if isinstance(answer, Outcome) else _read(transaction, answer)
            if isinstance(outcome, _Hidden):
                outcome = _hidden(wire, transaction, grace)
            elif isinstance(outcome, _Nothing):
                outcome = _of_nothing(wire, transaction)
            if outcome is None:
                waiting.append(transaction)
            else:
                found[transaction.identity] = outcome
        if waiting and not deadline.pause():
            witness = waiting[0].witness
            raise KafkaUnavailableError(
                f"The outcomes of {len(waiting)} transactions are not known after "
                f"{deadline}, as {waiting[0].identity}: the leader of partition "
                f"{witness.partition} of topic {witness.topic!r} does not answer, or waits for a "
                "replica in sync. Check that all brokers run, then ask again."
            )
        left, refresh = waiting, True
    return found


def _ask(
    wire: Wire, transactions: list[PreparedTransaction], *, refresh: bool
) -> list[tuple[PreparedTransaction, Any]]:
    """The partition's answer to each, ``None`` where there was none, UNKNOWN where it is gone.

    One request a transaction: of several partitions in one request, only the first is sure to
    get a batch larger than the limit (KIP-74).
    """
    leaders = {
        topic: wire.cluster.find_leaders(topic, refresh=refresh)
        for topic in {t.witness.topic for t in transactions}
    }
    answers: list[tuple[PreparedTransaction, Any]] = []
    futures = []
    for transaction in transactions:
        witness = transaction.witness
        leader = (leaders[witness.topic] or {}).get(witness.partition)
        if leader is None:
            answers.append((transaction, Outcome.UNKNOWN))
            continue
        request = fetch_request(
            witness.topic, witness.partition, witness.first, isolation=READ_COMMITTED, max_bytes=1
        )
        futures.append((transaction, wire.submit(request, node_id=leader)))
    for transaction, future in futures:
        try:
            answers.append((transaction, only_partition(future.result())))
        except KafkaUnavailableError:
            answers.append((transaction, None))
    return answers


def _read(transaction: PreparedTransaction, answer: Any) -> Outcome | _Hidden | _Nothing | None:
    """The outcome by one partition's answer; ``None``: ask again, perhaps another leader."""
    if answer is None:
        return None
    witness = transaction.witness
    if answer.error_code == faults.OFFSET_OUT_OF_RANGE:
        return HIDDEN
    doing = f"while reading partition {witness.partition} of topic {witness.topic!r}"
    if not faults.answered(answer.error_code, doing, acl=f"Read on Topic {witness.topic!r}"):
        return None
    if answer.high_watermark <= witness.first:
        return HIDDEN
    if answer.last_stable_offset <= witness.first:
        return Outcome.OPEN
    if not answer.records:
        return NOTHING
    return _by_batch(transaction, answer)


def _hidden(
    wire: Wire, transaction: PreparedTransaction, grace: dict[TransactionIdentity, Deadline]
) -> Outcome | None:
    """Whether the witness can still come to light: ``None``, ask again; else UNKNOWN."""
    witness = transaction.witness
    leader = (wire.cluster.find_leaders(witness.topic) or {}).get(witness.partition)
    ends = None
    if leader is not None:
        ends = log_ends(wire, witness.topic, witness.partition, leader=leader)
    if ends is None or ends.first <= witness.first < ends.next:
        grace.pop(transaction.identity, None)
        return None
    if ends.first > witness.first:
        return Outcome.UNKNOWN
    grace_left = grace.setdefault(transaction.identity, Deadline(_GRACE_S))
    return Outcome.UNKNOWN if grace_left.expired else None


def _of_nothing(wire: Wire, transaction: PreparedTransaction) -> Outcome | None:
    """UNKNOWN where compaction took it; ``None``, ask again, where it may come from elsewhere."""
    topic, partition, first = (
        transaction.witness.topic,
        transaction.witness.partition,
        transaction.witness.first,
    )
    leader = (wire.cluster.find_leaders(topic) or {}).get(partition, -1)
    local = is_local(wire, topic, partition, first, leader=leader)
    return Outcome.UNKNOWN if local else None


def _by_batch(transaction: PreparedTransaction, answer: Any) -> Outcome:
    offset = transaction.witness.first
    for batch in batch_headers(answer.records):
        if batch.base_offset <= offset <= batch.last_offset:
            ours = (batch.producer_id, batch.producer_epoch) == (
                transaction.producer_id,
                transaction.producer_epoch,
            )
            if not ours or batch.records == 0 or batch.is_control:
                return Outcome.UNKNOWN
            aborted = any(
                entry.producer_id == transaction.producer_id and entry.first_offset <= offset
                for entry in answer.aborted_transactions or ()
            )
            return Outcome.ABORTED if aborted else Outcome.COMMITTED
    return Outcome.UNKNOWN
