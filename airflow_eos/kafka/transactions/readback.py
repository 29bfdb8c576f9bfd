"""Rows that committed transactions delivered, read back from their recorded offsets.

A replay whose fingerprints do not pair compares rows: what is missing is what was promised less
what is found here. A row overlooked here would be delivered twice, so the count of every
transaction is checked, and anything short of it is an error.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_eos.errors import KafkaUnavailableError, TransactionError
from airflow_eos.kafka.client import faults
from airflow_eos.kafka.client.deadline import Deadline
from airflow_eos.kafka.client.fetch import (
    READ_COMMITTED,
    batch_headers,
    fetch_request,
    only_partition,
)
from airflow_eos.kafka.records.decoding import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_eos.kafka.client.fetch import Batch
    from airflow_eos.kafka.client.wire import Wire
    from airflow_eos.kafka.records.decoding import Row
    from airflow_eos.kafka.transactions.identity import OffsetRange, PreparedTransaction

_FETCH_BYTES = 8 * 1024 * 1024
_WAIT_MS = 500
_WITHOUT_READING = (
    "Nothing was made visible. Start the query with as many tasks as it had when the batch was "
    "promised (its cores, minPartitions): the tasks then pair with what was delivered by their "
    "content, and nothing needs to be read back."
)

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
    ]
)
"""Of the batches of :func:`delivered_rows`; the names are those that the writer takes.

``timestamp`` is null where the topic stamped the rows itself (``message.timestamp.type``): it then
says nothing of what was sent.
"""


def delivered_rows(
    wire: Wire, transactions: Sequence[PreparedTransaction], *, deadline_s: float = 60.0
) -> Iterator[pa.RecordBatch]:
    """The rows of transactions whose outcome is COMMITTED, one Arrow batch for each record batch.

    Other producers' rows inside the recorded ranges are left out, by producer id and epoch.
    ``deadline_s`` is how long one range may make no progress.

    Raises:
        TransactionError: a transaction has fewer rows than were promised (retention, compaction),
            or a record batch is garbled.
        TopicError: a topic is gone or may not be read.
        KafkaUnavailableError: a leader did not answer, or the transaction is still open.
    """
    for transaction in transactions:
        found = 0
        for written in transaction.written:
            for batch in _own_batches(wire, transaction, written, deadline_s):
                rows = [
                    row
                    for row in rows_of(batch, _place(written))
                    if written.first <= row.offset <= written.last
                ]
                found += len(rows)
                yield _to_arrow(written, rows, stamped=batch.has_append_time)
        if found != transaction.rows:
            raise TransactionError(
                f"{transaction.identity} delivered {transaction.rows} rows, but only {found} can "
                "be read back: the others are past retention or compacted. " + _WITHOUT_READING
            )


def _own_batches(
    wire: Wire, transaction: PreparedTransaction, written: OffsetRange, deadline_s: float
) -> Iterator[Batch]:
    mine = (transaction.producer_id, transaction.producer_epoch)
    offset, deadline = written.first, Deadline(deadline_s)
    refresh = False
    while offset <= written.last:
        answer = _fetch(wire, written, offset, refresh=refresh)
        refresh = answer is None
        batches = deque(batch_headers(answer.records)) if answer is not None else deque()
        for batch in batches:
            _require_intact(written, batch)
        if batches and batches[-1].last_offset >= offset:
            deadline = Deadline(deadline_s)
            offset = batches[-1].last_offset + 1
        elif deadline.expired or (refresh and not deadline.pause()):
            raise KafkaUnavailableError(
                f"Partition {written.partition} of topic {written.topic!r} gives no rows from "
                f"offset {offset} for {deadline}. Check that its leader runs and that no "
                "transaction that began before is still open, then ask again."
            )
        for batch in batches:
            is_ours = (batch.producer_id, batch.producer_epoch) == mine
            if is_ours and not batch.is_control and batch.base_offset <= written.last:
                yield batch


def _require_intact(written: OffsetRange, batch: Batch) -> None:
    """A row that is not what was delivered would count as missing, and be written once more."""
    trouble = batch.trouble
    if trouble is not None:
        raise TransactionError(
            f"The record batch at offset {batch.base_offset} of {_place(written)} is garbled: "
            f"{trouble}. {_WITHOUT_READING}"
        )


def _place(written: OffsetRange) -> str:
    return f"partition {written.partition} of topic {written.topic!r}"


def _fetch(wire: Wire, written: OffsetRange, offset: int, *, refresh: bool) -> Any:
    """The partition's answer; None where another leader is to be asked, or the same one later."""
    leader = wire.cluster.leaders(written.topic, refresh=refresh).get(written.partition, -1)
    request = fetch_request(
        written.topic,
        written.partition,
        offset,
        isolation=READ_COMMITTED,
        max_bytes=_FETCH_BYTES,
        max_wait_ms=_WAIT_MS,
    )
    try:
        answer = only_partition(wire.submit(request, node_id=leader).result())
    except KafkaUnavailableError:
        return None
    if answer is None:  # a quota: the broker sends nothing, and says for how long
        return None
    if answer.error_code == faults.OFFSET_OUT_OF_RANGE:
        raise TransactionError(
            f"Offset {offset} of partition {written.partition} of topic {written.topic!r} is past "
            "retention, or the topic is a new one. " + _WITHOUT_READING
        )
    doing = f"while reading partition {written.partition} of topic {written.topic!r}"
    said = faults.answered(answer.error_code, doing, acl=f"Read on Topic {written.topic!r}")
    return answer if said else None


def _to_arrow(written: OffsetRange, rows: list[Row], *, stamped: bool) -> pa.RecordBatch:
    columns = [
        [written.topic] * len(rows),
        [written.partition] * len(rows),
        [r.offset for r in rows],
        [r.key for r in rows],
        [r.value for r in rows],
        [[{"key": k, "value": v} for k, v in r.headers] for r in rows],
        [None if stamped else r.timestamp_ms for r in rows],
    ]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
