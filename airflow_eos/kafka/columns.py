"""The columns of rows for Kafka, each checked, whichever writer sends them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from airflow_eos.errors import RowError

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
"""The schema with all columns; ``headers`` is an empty list for a row without headers."""


def require_value(rows: pa.RecordBatch) -> None:
    """Refuse rows without the column ``value`` (RowError)."""
    names = rows.schema.names
    if "value" not in names:
        found = ", ".join(map(repr, names)) or "none at all"
        raise RowError(
            f"the rows have no column 'value', only {found}: "
            "name the bytes to send 'value', for example with to_json(struct(*)) AS value"
        )


def require_bytes(column: Any, name: str) -> None:
    """Refuse a column that is neither binary nor string (RowError: how to convert it)."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (_is_bytes(kind) or pa.types.is_null(kind)):
        raise RowError(
            f"column {name!r} is {kind}: expected binary or string; "
            f"cast it, for example with CAST({name} AS STRING) or to_json({name})"
        )


def _is_bytes(kind: Any) -> bool:
    tests = (
        pa.types.is_binary,
        pa.types.is_string,
        pa.types.is_large_binary,
        pa.types.is_large_string,
        pa.types.is_binary_view,
        pa.types.is_string_view,
        pa.types.is_fixed_size_binary,
    )
    return any(test(kind) for test in tests)


def timestamps_of(rows: pa.RecordBatch, *, now_ms: int) -> NDArray[np.int64] | int:
    """Return the rows' timestamps in ms since the epoch; one number for all if none has its own.

    Raises:
        RowError: a time before 1970, or a column that holds no times.
    """
    if "timestamp" not in rows.schema.names:
        return now_ms
    column = rows.column("timestamp")
    if column.null_count == len(column):
        return now_ms
    if pa.types.is_timestamp(column.type):
        # Kafka's timestamps are milliseconds: finer units are truncated on purpose.
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    elif pa.types.is_integer(column.type):
        column = column.cast(pa.int64())
    else:
        raise RowError(
            f"column 'timestamp' is {column.type}: expected a timestamp, "
            "or an integer of milliseconds since the epoch"
        )
    times: NDArray[np.int64] = pc.fill_null(column, now_ms).to_numpy(zero_copy_only=False)
    if int(times.min()) < 0:
        raise RowError(
            f"row {int(times.argmin())} has the timestamp {int(times.min())} ms: Kafka takes "
            "none before 1970-01-01; correct it, or leave it null for the time of sending"
        )
    return times


def header_items(column: Any) -> Any:
    """Return the headers of all rows, one after the other; None where no row has any.

    Raises:
        RowError: the column holds no headers, or one without a key.
    """
    kind = column.type
    if pa.types.is_null(kind) or column.null_count == len(column):
        return None
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not (
        is_list
        and pa.types.is_struct(kind.value_type)
        and {kind.value_type.field(i).name for i in range(kind.value_type.num_fields)}
        == {"key", "value"}
    ):
        raise RowError(
            f"column 'headers' is {kind}: expected array<struct<key: string, value: binary>>"
        )
    items = column.flatten()  # leaves out the items of null lists
    if len(items) == 0:
        return None
    for name in ("key", "value"):
        require_bytes(pc.struct_field(items, name), f"headers.{name}")
    if items.null_count or pc.struct_field(items, "key").null_count:
        raise RowError(
            "column 'headers' holds a header without a key: Kafka needs one, '' at least"
        )
    return items


def explicit_partitions(column: Any) -> NDArray[np.int64] | None:
    """Return the column ``partition`` as int64, -1 for a null; None where all are null.

    Raises:
        RowError: not a column of integers, or a negative number.
    """
    if column.null_count == len(column):
        return None
    if not pa.types.is_integer(column.type):
        raise RowError(f"column 'partition' is {column.type}: expected an integer")
    numbers = column.cast(pa.int64())
    given: NDArray[np.int64] = numbers.fill_null(-1).to_numpy(zero_copy_only=False)
    negative = given < 0
    if numbers.null_count < int(negative.sum()):
        row = int(np.flatnonzero(negative & numbers.is_valid().to_numpy(zero_copy_only=False))[0])
        raise RowError(
            f"row {row} is for partition {int(given[row])}: partitions count from 0; "
            "leave it null to let the key choose"
        )
    return given


def topics_of(
    rows: pa.RecordBatch, default_topic: str | None
) -> tuple[list[str], NDArray[np.int64] | None]:
    """Return the rows' topics, and each row's index into them (None: there is just one topic)."""
    if "topic" not in rows.schema.names:
        if default_topic is None:
            raise RowError("the rows have no column 'topic', and the sink names no topic: set one")
        return [default_topic], None
    column = rows.column("topic")
    if pa.types.is_null(column.type):
        column = column.cast(pa.string())
    if column.null_count:
        if default_topic is None:
            row = int(pc.index(column.is_null(), value=True).as_py())
            raise RowError(f"row {row} has no topic, and the sink names none: set one of them")
        column = column.fill_null(default_topic)
    encoded = column.dictionary_encode()
    names = [str(name) for name in encoded.dictionary.to_pylist()]
    return names, encoded.indices.to_numpy().astype(np.int64)
