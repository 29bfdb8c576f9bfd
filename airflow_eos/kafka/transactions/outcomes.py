"""Outcomes of transactions, read from the log itself (docs/protocol.md), and their rows read back.

One Fetch per transaction reads its witness, the offset of its first row in one partition, with
``isolation_level=read_committed``. The response holds the last stable offset, the aborted
transactions that overlap the batches read, and the record batch at the witness:

| leader's response                                                | outcome   |
|------------------------------------------------------------------|-----------|
| last stable offset at or before the witness                      | OPEN      |
| our batch there, our producer id among the aborted               | ABORTED   |
| our batch there, our producer id not among the aborted           | COMMITTED |
| another's batch there: a new topic, or an unclean election       | UNKNOWN   |
| our batch emptied, or none there: compacted                      | UNKNOWN   |
| high watermark at or before the witness, or offset out of range  | see below |
| topic or partition gone                                          | UNKNOWN   |

That no batch is there means compaction only where the leader reads the witness from its own disk.
Batches in remote storage come later, and are asked for again.

A batch is ours by producer id *and* epoch. One that log compaction has emptied proves nothing:
its entry among the aborted may have gone with its rows. OPEN can also mean that *another*
transaction that began earlier in the partition is still open; it says "not known yet".

Our rows were acknowledged, so they were below the high watermark once. Where it is lower now, the
leader is asked where its log begins and ends. If the log holds the witness, an in-sync replica is
slow or the leader is new; that passes: wait. If the log begins after the witness, the row is past
retention. If it ends before the witness for a while, the topic was emptied or created anew, or an
unclean election has cut the log off. A person is asked only in the last two cases.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from msgspec import structs

from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.errors import InputError, KafkaUnavailableError, TransactionError
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.client.cluster import id_of
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.errors import Deadline
from airflow_eos.kafka.client.fetch import (
    READ_COMMITTED,
    FetchedRecordBatch,
    batch_headers,
    fetch_request,
    only_partition,
)
from airflow_eos.kafka.client.offsets import is_local, log_ends
from airflow_eos.kafka.client.reading import OffsetSpan, read_span
from airflow_eos.kafka.client.records import rows_of
from airflow_eos.kafka.columns import SCHEMA
from airflow_eos.kafka.transactions.identity import (
    OffsetRange,
    PreparedTransaction,
    TransactionIdentity,
)

T = TypeVar("T")

GRACE_S = 2.0
"""How long a log must end before the witness to count: a former leader may have answered."""


class Inconclusive(enum.Enum):
    """A response about a transaction that does not tell its outcome by itself."""

    HIDDEN = enum.auto()
    """The witness is not readable now: at or above the high watermark, or out of range."""
    NOTHING = enum.auto()
    """The witness is readable, but the response has no batch."""
    REPLACED = enum.auto()
    """Another producer's rows are at the witness; an offset is given once: ours are not there."""


def outcomes(
    wire: ConnectionPool, transactions: Sequence[PreparedTransaction], *, deadline_s: float = 60.0
) -> dict[TransactionIdentity, Outcome]:
    """Read each transaction's outcome in the log, all in flight; about 1 ms and one batch each.

    Raises:
        TopicError: a topic may not be read.
        KafkaUnavailableError: some leader did not answer within ``deadline_s``.
    """
    grace: dict[TransactionIdentity, Deadline] = {}

    def settled(transaction: PreparedTransaction, seen: Outcome | Inconclusive) -> Outcome | None:
        match seen:
            case Inconclusive.HIDDEN:
                return _hidden(wire, transaction, grace)
            case Inconclusive.NOTHING:
                return _of_nothing(wire, transaction)
            case Inconclusive.REPLACED:
                return Outcome.UNKNOWN
        return seen

    each = {t.identity: t for t in transactions}.values()
    asked = _ask_until(wire, each, Deadline(deadline_s), settled)
    return {transaction.identity: outcome for transaction, outcome in asked}


def made_again(
    wire: ConnectionPool, transactions: Sequence[PreparedTransaction]
) -> dict[TransactionIdentity, str]:
    """Return why nobody can commit a transaction: a topic has another id than it was written to.

    Nothing is said of a topic that had no id, or that may not be described now.
    """
    noted = {at.topic for each in transactions for at in each.written if at.topic_id}
    asked = {name: wire.cluster.describe_topic(name) for name in noted}
    told = (faults.NONE, faults.UNKNOWN_TOPIC_OR_PARTITION)
    now = {name: id_of(its) for name, its in asked.items() if its.error_code in told}
    return {
        each.identity: f"topic {at.topic!r} is another one now: its id was {at.topic_id}, and is "
        f"{now[at.topic] or 'none, as there is no such topic'}, since it was deleted"
        for each in transactions
        for at in each.written
        if at.topic_id and now.get(at.topic, at.topic_id) != at.topic_id
    }


def replaced(
    wire: ConnectionPool, transactions: Sequence[PreparedTransaction], *, deadline_s: float = 60.0
) -> set[TransactionIdentity]:
    """Return the transactions in whose place, in a topic made anew since, another's rows are.

    One fetch for each topic, and one for each transaction of a topic where that found another's
    rows. Rows that are compacted, past retention or gone count as neither.

    Raises:
        TopicError: a topic may not be read.
        KafkaUnavailableError: some leader did not answer within ``deadline_s``.
    """
    written = [
        structs.replace(each, written=(at,))
        for each in transactions
        for at in {at.topic: at for at in each.written}.values()
    ]
    deadline = Deadline(deadline_s)
    first = {each.witness.topic: each for each in written}
    topics = {each.witness.topic for each in _replaced(wire, first.values(), deadline)}
    doubtful = [each for each in written if each.witness.topic in topics]
    return {each.identity for each in _replaced(wire, doubtful, deadline)}


def _replaced(
    wire: ConnectionPool, transactions: Iterable[PreparedTransaction], deadline: Deadline
) -> list[PreparedTransaction]:
    asked = _ask_until(wire, transactions, deadline, lambda _, seen: seen)
    return [each for each, seen in asked if seen is Inconclusive.REPLACED]


def _ask_until(
    wire: ConnectionPool,
    transactions: Iterable[PreparedTransaction],
    deadline: Deadline,
    settled: Callable[[PreparedTransaction, Outcome | Inconclusive], T | None],
) -> Iterator[tuple[PreparedTransaction, T]]:
    """Yield each transaction with the result of ``settled``, asked for again while that is None."""
    left, refresh = list(transactions), False
    while left:
        waiting: list[PreparedTransaction] = []
        for transaction, answer in _ask(wire, left, refresh=refresh):
            seen = answer if isinstance(answer, Outcome) else _read(transaction, answer)
            told = None if seen is None else settled(transaction, seen)
            if told is None:
                waiting.append(transaction)
            else:
                yield transaction, told
        if waiting and not deadline.pause():
            witness = waiting[0].witness
            raise KafkaUnavailableError(
                f"The outcomes of {len(waiting)} transactions are not known after "
                f"{deadline}, as {waiting[0].identity}: the leader of {_range_text(witness)} does "
                "not answer, or waits for a replica in sync. Check that all brokers run, then ask "
                "again."
            )
        left, refresh = waiting, True


def _ask(
    wire: ConnectionPool, transactions: list[PreparedTransaction], *, refresh: bool
) -> list[tuple[PreparedTransaction, Any]]:
    """Fetch each transaction's witness; ``None``: no answer, UNKNOWN: its partition is gone.

    One request per transaction: of several partitions in one request, only the first is sure to
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
            asked = transaction.witness.topic, transaction.witness.partition
            answers.append((transaction, only_partition(future.result(), asked)))
        except KafkaUnavailableError:
            answers.append((transaction, None))
    return answers


def _read(transaction: PreparedTransaction, answer: Any) -> Outcome | Inconclusive | None:
    """Translate a partition's answer to an outcome; ``None``: ask again, perhaps another leader."""
    if answer is None:
        return None
    witness = transaction.witness
    if answer.error_code == faults.OFFSET_OUT_OF_RANGE:
        return Inconclusive.HIDDEN
    doing = f"while reading {_range_text(witness)}"
    if not faults.answered(answer.error_code, doing, acl=f"Read on Topic {witness.topic!r}"):
        return None
    if answer.high_watermark <= witness.first:
        return Inconclusive.HIDDEN
    if answer.last_stable_offset <= witness.first:
        return Outcome.OPEN
    if not answer.records:
        return Inconclusive.NOTHING
    return _by_batch(transaction, answer)


def _hidden(
    wire: ConnectionPool,
    transaction: PreparedTransaction,
    grace: dict[TransactionIdentity, Deadline],
) -> Outcome | None:
    """Return ``None``, ask again, while the witness may become readable; else UNKNOWN."""
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
    grace_left = grace.setdefault(transaction.identity, Deadline(GRACE_S))
    return Outcome.UNKNOWN if grace_left.expired else None


def _of_nothing(wire: ConnectionPool, transaction: PreparedTransaction) -> Outcome | None:
    """Return UNKNOWN if compaction took the batch; ``None``, ask again, if it may be remote."""
    at = transaction.witness
    leader = (wire.cluster.find_leaders(at.topic) or {}).get(at.partition, -1)
    local = is_local(wire, at.topic, at.partition, at.first, leader=leader)
    return Outcome.UNKNOWN if local else None


def _by_batch(transaction: PreparedTransaction, answer: Any) -> Outcome | Inconclusive:
    offset = transaction.witness.first
    for batch in batch_headers(answer.records):
        if batch.base_offset <= offset <= batch.last_offset:
            ours = (batch.producer_id, batch.producer_epoch) == (
                transaction.producer_id,
                transaction.producer_epoch,
            )
            if not ours or batch.is_control:
                return Inconclusive.REPLACED
            if batch.records == 0:
                return Outcome.UNKNOWN
            aborted = any(
                entry.producer_id == transaction.producer_id and entry.first_offset <= offset
                for entry in answer.aborted_transactions or ()
            )
            return Outcome.ABORTED if aborted else Outcome.COMMITTED
    return Outcome.UNKNOWN


def _range_text(written: OffsetRange) -> str:
    return f"partition {written.partition} of topic {written.topic!r}"


# --- rows read back -------------------------------------------------------------------------------
# Rows that committed transactions delivered, read back from their recorded offsets.
#
# A replay whose fingerprints do not pair compares rows: those missing are those promised less those
# read back here. A row overlooked here would be delivered twice, so each transaction's row count is
# checked, and a lower one is an error.


_FETCH_BYTES = 8 * 1024 * 1024
_ROWS_AT_ONCE = 10_000
_WITHOUT_READING = (
    "Nothing was made visible. Start the query with as many tasks as it had when the batch was "
    "promised (its cores, minPartitions): the tasks then pair with what was delivered by their "
    "content, and nothing needs to be read back."
)


def delivered_rows(
    wire: ConnectionPool, transactions: Sequence[PreparedTransaction], *, deadline_s: float = 60.0
) -> Iterator[pa.RecordBatch]:
    """Read the rows of committed transactions back, each record batch in one Arrow batch or more.

    The columns are those of :data:`~airflow_eos.kafka.columns.SCHEMA`. ``timestamp`` is null where
    the topic stamped the rows itself (``message.timestamp.type``): the timestamp that was sent is
    then not known. Other producers' rows inside the recorded ranges are left out, by producer id
    and epoch.
    ``deadline_s`` is how long one range may make no progress.

    Raises:
        TransactionError: a transaction has fewer rows than were promised (retention, compaction),
            or a record batch is garbled.
        TopicError: a topic is gone or may not be read.
        KafkaUnavailableError: a leader did not answer, or the transaction is still open.
    """
    for transaction in transactions:
        found = 0
        try:
            for rows in _own_rows(wire, transaction, deadline_s):
                found += rows.num_rows
                yield rows
        except (InputError, OverflowError) as error:  # its ways out are those of a source
            what = str(error).partition(". ")[0]
            raise TransactionError(
                f"{what}. What {transaction.identity} delivered is past retention, garbled, or of "
                f"a topic that is a new one. {_WITHOUT_READING}"
            ) from error
        if found != transaction.rows:
            raise TransactionError(
                f"{transaction.identity} delivered {transaction.rows} rows, but only {found} can "
                "be read back: the others are past retention or compacted. " + _WITHOUT_READING
            )


def _own_rows(
    wire: ConnectionPool, transaction: PreparedTransaction, deadline_s: float
) -> Iterator[pa.RecordBatch]:
    mine = (transaction.producer_id, transaction.producer_epoch)
    for at in transaction.written:
        span = OffsetSpan(at.topic, at.partition, at.first, at.last + 1)
        for batches in read_span(wire, span, fetch_bytes=_FETCH_BYTES, stalled_s=deadline_s):
            for batch in batches:
                if (batch.producer_id, batch.producer_epoch) != mine:
                    continue
                yield from _tables(batch, span)


def _tables(batch: FetchedRecordBatch, span: OffsetSpan) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``span`` in a record batch; a replay reads few, so one by one."""
    found = (
        {
            "key": row.key,
            "value": row.value,
            "topic": span.topic,
            "partition": span.partition,
            "offset": row.offset,
            "timestamp": None if batch.has_append_time else row.timestamp * 1000,
            "headers": [{"key": key, "value": value} for key, value in row.headers],
        }
        for row in rows_of(batch, str(span))
        if span.first <= row.offset < span.until
    )
    while rows := list(itertools.islice(found, _ROWS_AT_ONCE)):
        yield pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
