"""Reader of an offset range of one partition, at an isolation level.

It works as ``CompletedFetch`` of Kafka's own consumer does: rows of aborted transactions are found
by the list that comes with each response, markers and batches outside the range are skipped, and
every record batch is checked against its CRC. A leader that moves is looked up again; offsets that
are gone are an error, since their rows were promised to a batch.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from airflow_eos.core.log import Log
from airflow_eos.errors import InputError, KafkaUnavailableError, Remedy
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.errors import Deadline
from airflow_eos.kafka.client.fetch import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchedRecordBatch,
    batch_headers,
    fetch_request,
    older_format,
    only_partition,
)
from airflow_eos.kafka.client.offsets import (
    EARLIEST,
    cleanup_policies,
    is_local,
    positions,
    tells_local,
)

log = Log(__name__)

FETCH_BYTES = 4 * 1024 * 1024
_WAIT_MS = 500
_STALLED_S = 60.0


@dataclass(frozen=True, slots=True, order=True)
class OffsetSpan:
    """Offsets ``first`` (included) to ``until`` (excluded) of one topic partition."""

    topic: str
    partition: int
    first: int
    until: int

    def __str__(self) -> str:
        return f"partition {self.partition} of topic {self.topic!r}"

    def stepping_over(self, first: int, last: int) -> Remedy:
        """Return the remedy that skips the unreadable offsets ``first`` to ``last`` (included)."""
        span = f"{self.topic}:{self.partition}:{first}-{last}"
        return Remedy(
            commands=(f"airflow-eos accept CHECKPOINT --skip-input {span} --yes",),
            start=True,
            costs=f"the records at offsets {first} to {last}, {last - first + 1} at most, for good",
        )


def read_span(
    wire: ConnectionPool,
    span: OffsetSpan,
    *,
    committed_only: bool = True,
    markers: bool = False,
    fetch_bytes: int = FETCH_BYTES,
    stalled_s: float = _STALLED_S,
) -> Iterator[list[FetchedRecordBatch]]:
    """Yield a span's record batches that have rows for this reader, one response's at a time.

    The first and last batch can have rows outside the span. No batch is decompressed.

    Args:
        committed_only: leave out the rows of transactions that are open or aborted.
        markers: yield transaction markers as well.
        fetch_bytes: bytes per request; a single larger record batch comes whole.
        stalled_s: how long reading may make no progress.

    Raises:
        InputError: offsets of the span are gone, or a record batch is garbled.
        TopicError: the topic is gone or may not be read.
        KafkaUnavailableError: no leader answers, or a transaction that began before is still open.
    """
    position, deadline, epoch = span.first, Deadline(stalled_s), -1
    refresh, nothing = False, 0
    isolation = READ_COMMITTED if committed_only else READ_UNCOMMITTED
    while position < span.until:
        answer = _answer(wire, span, position, isolation, fetch_bytes, refresh=refresh)
        if answer is not None and answer.error_code == faults.OFFSET_OUT_OF_RANGE:
            raise _gone(wire, span, position)
        refresh = answer is None
        batches, reached = _whole(span, position, answer)
        if batches:
            epoch = _one_log(span, position, batches, epoch)
            committed = answer if committed_only else None
            yield _visible(span, position, batches, committed, markers=markers)
        if reached > position:
            position, nothing, deadline = reached, 0, Deadline(stalled_s)
            continue
        if answer is not None:
            end = answer.last_stable_offset if committed_only else answer.high_watermark
            nothing += end >= span.until
        if nothing > 1 and _is_hole(wire, span, position):  # compaction has left nothing more
            return
        if deadline.expired or ((refresh or nothing > 1) and not deadline.pause()):
            raise KafkaUnavailableError(
                f"{span} gives no rows from offset {position} for {deadline}; expected those up "
                f"to {span.until}. Check that its leader runs, that no transaction that began "
                "before is still open, and, where it has tiered storage, that the leader can read "
                "that (remote.fetch.max.wait.ms, its quotas); the batch runs again.",
                *(_of_nothing(wire, span, position) if nothing > 1 else ()),
            )


def clip_to_log_start(wire: ConnectionPool, span: OffsetSpan) -> OffsetSpan:
    """Return the part of a span that its log still has; warn if its first offsets are gone."""
    gone = _gone_of(wire, span, span.first)
    if gone <= 0:
        return span
    log.warning(
        "rows_skipped", topic=span.topic, partition=span.partition, first=span.first, offsets=gone
    )
    return replace(span, first=span.first + gone)


def _gone_of(wire: ConnectionPool, span: OffsetSpan, position: int) -> int:
    tp = (span.topic, span.partition)
    return min(positions(wire, [tp], EARLIEST)[tp], span.until) - position


def _gone(wire: ConnectionPool, span: OffsetSpan, position: int) -> InputError:
    gone = _gone_of(wire, span, position)
    found = (
        f"Offset {position} of {span} is not in its log; expected rows up to {span.until}. "
        "Retention has overtaken the reader, or the topic was deleted and made again: rows that "
        "were not read are gone. Nothing is delivered of the batch."
    )
    if gone <= 0:  # the log ends before the offset: it is a topic made anew
        return InputError(found)
    return InputError(
        found,
        Remedy(change="put the rows back", start=True),
        Remedy(
            settings={"failOnDataLoss": "false"},
            start=True,
            costs=f"{gone} offsets of this partition, and those that are gone of others",
        ),
    )


def _answer(
    wire: ConnectionPool,
    span: OffsetSpan,
    offset: int,
    isolation: int,
    fetch_bytes: int,
    *,
    refresh: bool,
) -> Any:
    """Fetch from an offset and return the partition's part; None: ask again, after a refresh."""
    leaders = wire.cluster.leaders(span.topic, refresh=refresh)
    if span.partition not in leaders:  # a warm worker may know the topic as it once was
        leaders = wire.cluster.leaders(span.topic, refresh=True)
    if span.partition not in leaders:
        raise InputError(
            f"{span} is not there any more: the topic has partitions {sorted(leaders)}. Rows from "
            f"offset {offset} on are gone with it. {_NEXT}"
        )
    request = fetch_request(
        span.topic,
        span.partition,
        offset,
        isolation=isolation,
        max_bytes=fetch_bytes,
        max_wait_ms=_WAIT_MS,
    )
    try:
        response = wire.submit(request, node_id=leaders[span.partition]).result()
        answer = only_partition(response, (span.topic, span.partition))
    except KafkaUnavailableError:
        return None
    if answer is None:  # a quota throttles us: the response is empty
        return None
    if answer.error_code == faults.OFFSET_OUT_OF_RANGE:
        return answer
    if answer.error_code == faults.CORRUPT_MESSAGE:
        raise InputError(
            f"What {span} has at offset {offset} is garbled, as its leader found: Kafka answered "
            f"{faults.error_name(answer.error_code)}. Move the leadership to a replica whose copy "
            f"is sound. {_NEXT}"
        )
    said = faults.answered(
        answer.error_code, f"while reading {span}", acl=f"Read on Topic {span.topic!r}"
    )
    return answer if said else None


def _whole(span: OffsetSpan, position: int, answer: Any) -> tuple[list[FetchedRecordBatch], int]:
    """Return a response's batches that begin before the span's end, and the offset after the last.

    Batches behind the span are not checked: a person may have ruled to skip them.
    """
    records = answer.records if answer is not None else None
    batches = list(batch_headers(records))
    if records and not batches:
        older = older_format(records)
        found = "no record batch" if older is None else f"a message of format {older}"
        raise InputError(
            f"What {span} has at offset {position} is {found}: expected a record batch of format "
            f"2, which all brokers since 0.11 write. {_NEXT if older is None else _OLDER}"
        )
    before = -1
    whole: list[FetchedRecordBatch] = []
    for batch in batches:
        if batch.base_offset >= span.until:
            return whole, span.until
        trouble = batch.trouble
        if trouble is None and batch.base_offset <= before:
            trouble = f"the batch before it ends at offset {before}"
        if trouble is not None:
            raise InputError(
                f"The record batch at offset {batch.base_offset} of {span} is garbled: {trouble}. "
                "Nothing of it was made visible.",
                Remedy(change="move the leadership to a replica whose copy is sound", start=True),
                span.stepping_over(batch.base_offset, _last_of(batch, batches, span)),
            )
        before = batch.last_offset
        whole.append(batch)
    if batches and before < position:
        raise InputError(
            f"What {span} was asked for from offset {position} on, and what came ends at offset "
            f"{before}. {_ANOTHER_LOG}"
        )
    return whole, before + 1


def _last_of(
    garbled: FetchedRecordBatch, batches: list[FetchedRecordBatch], span: OffsetSpan
) -> int:
    """Return a garbled batch's last offset: before the next batch, and within the span."""
    ends = [each.base_offset - 1 for each in batches if each.base_offset > garbled.base_offset]
    told = garbled.last_offset if garbled.last_offset >= garbled.base_offset else span.until
    return max(garbled.base_offset, min(*ends, told, span.until - 1))


def _one_log(span: OffsetSpan, position: int, batches: list[FetchedRecordBatch], epoch: int) -> int:
    """Return the last batch's leader epoch; refuse batches of a log that was rewritten meanwhile.

    It is after an unclean election, or where a former leader still answers: rows would come twice,
    or be rows that the cluster has given up.

    Args:
        position: the offset up to which the span was read; the first response may begin before it.
        epoch: the leader epoch of the batch before; -1 where there is none.
    """
    if batches[0].base_offset < position > span.first:
        raise InputError(
            f"The record batch at offset {batches[0].base_offset} of {span} begins before offset "
            f"{position}, up to which its log was read just now. {_ANOTHER_LOG}"
        )
    for batch in batches:
        if 0 <= batch.leader_epoch < epoch:
            raise InputError(
                f"The record batch at offset {batch.base_offset} of {span} is of leader epoch "
                f"{batch.leader_epoch}, and the one before it of epoch {epoch}. {_ANOTHER_LOG}"
            )
        epoch = max(epoch, batch.leader_epoch)
    return epoch


def _visible(
    span: OffsetSpan,
    position: int,
    batches: list[FetchedRecordBatch],
    committed: Any,
    *,
    markers: bool = False,
) -> list[FetchedRecordBatch]:
    """List the batches with rows of the span, without the aborted transactions of ``committed``."""
    listed = committed.aborted_transactions if committed is not None else None
    waiting = [(each.first_offset, each.producer_id) for each in listed or ()]
    heapq.heapify(waiting)
    aborted: set[int] = set()
    found = []
    for batch in batches:
        while waiting and waiting[0][0] <= batch.last_offset:
            aborted.add(heapq.heappop(waiting)[1])
        if batch.is_control:  # commit or abort; the log cleaner may have emptied it
            aborted.discard(batch.producer_id)
            if markers:
                found.append(batch)
            continue
        if batch.is_transactional and batch.producer_id in aborted:
            continue
        if batch.records and batch.base_offset < span.until and batch.last_offset >= position:
            found.append(batch)
    return found


def _is_hole(wire: ConnectionPool, span: OffsetSpan, position: int) -> bool:
    """Whether an empty response at ``position`` means that the log has no more rows.

    Remote storage can be slow to answer, and a broker that does not tell which offsets are local
    can have some (Redpanda): there, only a compacted log counts as one with holes.
    """
    if not tells_local(wire):
        return "compact" in cleanup_policies(wire, [span.topic]).get(span.topic, "")
    leader = wire.cluster.leaders(span.topic).get(span.partition, -1)
    return is_local(wire, span.topic, span.partition, position, leader=leader)


def _of_nothing(wire: ConnectionPool, span: OffsetSpan, position: int) -> tuple[Remedy, ...]:
    if tells_local(wire):
        return ()
    waited = Remedy(change="give the leader back what it has in remote storage", start=True)
    return waited, span.stepping_over(position, span.until - 1)


_ANOTHER_LOG = (
    "Its log was rewritten while it was read (an unclean leader election, or the topic was made "
    "again). Nothing of what was read is delivered; the task reads the range again."
)
_OLDER = "Read the topic with Spark's Kafka source, or copy it to a new one."
_NEXT = (
    "Nothing is delivered of the batch. Start on a new checkpoint location with a position that "
    "the topic has, or put the rows back."
)
