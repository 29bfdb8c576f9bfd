"""Record batches of one partition → Arrow columns, without a Python object for a row."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from airflow_eos.errors import InputError
from airflow_eos.kafka.records import loops
from airflow_eos.kafka.records.spans import Garbled
from airflow_eos.kafka.records.unpacking import garbled, unpacked

if TYPE_CHECKING:
    from airflow_eos.kafka.client.fetch import Batch
    from airflow_eos.kafka.client.reading import OffsetSpan
    from airflow_eos.kafka.records.spans import I64, Spans
    from airflow_eos.kafka.records.unpacking import Unpacked

HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("headers", pa.list_(HEADER)),
    ]
)
"""All columns; a row has as many headers as it has, an empty list where it has none."""
COLUMNS = tuple(SCHEMA.names)

_MOST_MS = ((1 << 63) - 1) // 1000


def tables(
    batches: Sequence[Batch], span: OffsetSpan, columns: Collection[str] = COLUMNS
) -> Iterator[pa.RecordBatch]:
    """The rows of ``span`` in these batches, in the order of their offsets.

    Args:
        batches: of the partition.
        span: rows outside it are left out.
        columns: of ``SCHEMA``, in the order in which they are wanted.

    Raises:
        InputError: a batch is garbled: which, by topic, partition and offset.
    """
    for packed in unpacked(batches, str(span)):
        try:
            rows = _table(packed, span, columns)
        except Garbled as error:
            raise garbled(packed, error.batch, str(span)) from None
        if rows.num_rows:
            yield rows


def _table(packed: Unpacked, span: OffsetSpan, columns: Collection[str]) -> pa.RecordBatch:
    spans = loops.spans_of(packed)
    inside = (spans.offsets >= span.first) & (spans.offsets < span.until)
    if not inside.all():
        spans = spans.where(inside)
    made = [_column(name, packed, spans, span) for name in columns]
    return pa.RecordBatch.from_arrays(made, schema=pa.schema([SCHEMA.field(n) for n in columns]))


def _column(name: str, packed: Unpacked, spans: Spans, span: OffsetSpan) -> Any:
    count = len(spans.offsets)
    match name:
        case "key":
            return binary(packed.data, spans.keys, spans.key_lengths)
        case "value":
            return binary(packed.data, spans.values, spans.value_lengths)
        case "topic":
            return pa.repeat(pa.scalar(span.topic), count)
        case "partition":
            return pa.array(np.full(count, span.partition, np.int32))
        case "offset":
            return pa.array(spans.offsets)
        case "timestamp":
            return _times(spans, span).cast(SCHEMA.field(name).type)
        case _:
            return _headers(packed, spans)


def _times(spans: Spans, span: OffsetSpan) -> Any:
    """In microseconds, of which 64 bits hold 292,000 years either way."""
    times = spans.times
    if len(times) and not -_MOST_MS <= times.min() <= times.max() <= _MOST_MS:
        row = int(np.argmax(np.abs(times.astype(np.float64))))
        raise InputError(
            f"The row at offset {int(spans.offsets[row])} of {span} has the time stamp "
            f"{int(times[row])}, expected milliseconds since the epoch: as microseconds it does "
            "not fit into 64 bits. Leave the column timestamp out (select), or the row "
            "(a new checkpoint that begins after it)."
        )
    return pa.array(times * 1000)


def binary(data: Any, places: I64, lengths: I64, kind: Any = None) -> Any:
    """Fields as an Arrow array; a length of -1 is a null."""
    ends, content = loops.gathered(data, places, lengths)
    nulls = lengths < 0
    found = int(nulls.sum())
    mask = pa.py_buffer(np.packbits(~nulls, bitorder="little")) if found else None
    return pa.Array.from_buffers(
        kind or pa.binary(),
        len(places),
        [mask, pa.py_buffer(ends), pa.py_buffer(content)],
        null_count=found,
    )


def _headers(packed: Unpacked, spans: Spans) -> Any:
    ends = np.concatenate(([0], np.cumsum(spans.header_counts))).astype(np.int32)
    names, name_lengths, values, value_lengths = loops.header_spans_of(packed, spans)
    keys = binary(packed.data, names, name_lengths)
    items = pa.StructArray.from_arrays(
        [_text(keys), binary(packed.data, values, value_lengths)], fields=list(HEADER)
    )
    return pa.ListArray.from_arrays(pa.array(ends), items, type=SCHEMA.field("headers").type)


def _text(names: Any) -> Any:
    """As Java has it: what is not UTF-8 becomes U+FFFD, and is no reason to stop."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([bytes(name).decode(errors="replace") for name in names.to_pylist()])
