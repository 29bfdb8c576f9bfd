"""A sink's columns and row hashes, made in Arrow just as Spark would make them.

A sink gives its columns as SQL. Only the SQL of plain columns and of the Kafka sink's is known
here; for any other, :func:`prepared_by` returns None and Spark does it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from airflow_eos.arrow.records import kernels as loops
from airflow_eos.arrow.records.numpy_kernels import SEED, hash_ints, hash_longs
from airflow_eos.core.delivery.task import HASH_COLUMN
from airflow_eos.kafka.columns import HEADER

Words = NDArray[np.uint64]
_PLAIN = re.compile(r"`(\w+)` AS `\1`")
_NO_NULL = re.compile(r"coalesce\(`(\w+)`, '([^'\\]*)'\) AS `\1`")
_MILLISECONDS = re.compile(r"date_trunc\('millisecond', `(\w+)`\) AS `\1`")
_HEADERS = re.compile(r"coalesce\(`(\w+)`, cast\(array\(\) AS array<struct<.*>>\)\) AS `\1`")


@dataclass(frozen=True)
class Prepared:
    """A function from rows to a sink's columns with row hashes; pickled into every task.

    Attributes:
        columns: the names of the columns, and the functions that make them.
        number: the columns' names and types as a number, part of each hash; None where it is not.
    """

    columns: tuple[tuple[str, Callable[[Any], Any]], ...]
    number: int | None = None

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of one batch in the sink's columns, with their hashes."""
        made = [make(rows.column(name)) for name, make in self.columns]
        hashes = row_hashes(made, rows.num_rows, self.number)
        names = [name for name, _ in self.columns]
        return pa.RecordBatch.from_arrays(
            [*made, pa.array(hashes.view(np.int64))], [*names, HASH_COLUMN]
        )


def prepared_by(
    expressions: Sequence[str], schema: pa.Schema, number: int | None = None
) -> Prepared | None:
    """Return what makes a sink's columns of rows of ``schema``; None where only Spark can.

    Args:
        expressions: the SQL that :meth:`~airflow_eos.core.delivery.port.Sink.columns` gives.
        schema: the schema of the rows.
        number: the columns' names and types as a number, where the hash of a row includes it.
    """
    columns = [_column(each) for each in expressions]
    known = [each for each in columns if each is not None]
    kinds = [schema.field(name).type for name, _ in known]
    if len(known) < len(columns) or not all(map(_can_hash, kinds)):
        return None
    if number is not None and any(map(pa.types.is_list, kinds)):
        return None
    return Prepared(tuple(known), number)


def _column(expression: str) -> tuple[str, Callable[[Any], Any]] | None:
    if found := _PLAIN.fullmatch(expression):
        return found[1], _same
    if found := _NO_NULL.fullmatch(expression):
        return found[1], partial(_without_nulls, instead=found[2])
    if found := _MILLISECONDS.fullmatch(expression):
        return found[1], _in_milliseconds
    if found := _HEADERS.fullmatch(expression):
        return found[1], partial(_without_nulls, instead=[])
    return None


def _same(column: Any) -> Any:
    return column


def _without_nulls(column: Any, instead: Any) -> Any:
    if not column.null_count:
        return column
    return pc.if_else(column.is_valid(), column, pa.scalar(instead, column.type))


def _in_milliseconds(column: Any) -> Any:
    return pc.floor_temporal(column, unit="millisecond")


def _can_hash(kind: Any) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
        or _is_bytes(kind)
        or (pa.types.is_timestamp(kind) and kind.unit == "us")
        or kind == pa.list_(HEADER)
    )


def row_hashes(columns: Sequence[Any], count: int, number: int | None = None) -> Words:
    """Return ``xxhash64(number, a, isnull(a), b, isnull(b), …)``, as ``delivery.task.row_hash``."""
    hashes = np.full(count, SEED)
    always = np.ones(count, np.bool_)
    if number is not None:
        hash_longs(np.full(count, number, np.int64), always, hashes)
    for column in columns:
        valid = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else always
        if _is_bytes(column.type):
            loops.hash_bytes(*loops.bytes_of(column), valid, hashes, count_nulls=True)
        else:
            _go_on(column, valid, hashes)
            hash_ints((~valid).astype(np.int32), always, hashes)
    return hashes


def _is_bytes(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _go_on(column: Any, valid: Any, hashes: Words) -> None:
    kind = column.type
    if pa.types.is_list(kind):
        _go_on_with_headers(column, valid, hashes)
    elif _is_bytes(kind):
        loops.hash_bytes(*loops.bytes_of(column), valid, hashes)
    elif kind.bit_width == 64:
        hash_longs(_numbers(column, pa.int64(), np.int64), valid, hashes)
    else:
        hash_ints(_numbers(column, pa.int32(), np.int32), valid, hashes)


def _numbers(column: Any, kind: Any, numpy_kind: Any) -> Any:
    numbers = column.cast(kind)
    if numbers.null_count:
        numbers = numbers.fill_null(0)
    return np.ascontiguousarray(numbers.to_numpy(zero_copy_only=False), numpy_kind)


def _go_on_with_headers(column: Any, valid: Any, hashes: Words) -> None:
    """Hash headers one after the other, name then value: each row has its own number of headers."""
    counts = np.where(valid, column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), 0)
    firsts = np.concatenate(([0], np.cumsum(counts)))[:-1]
    items = column.flatten()
    for index in range(int(counts.max(initial=0))):
        rows = np.flatnonzero(counts > index)
        element = items.take(pa.array(firsts[rows] + index))
        part = hashes[rows]
        for name in ("key", "value"):
            field = pc.struct_field(element, name)
            present = field.is_valid().to_numpy(zero_copy_only=False)
            _go_on(field, present, part)
        hashes[rows] = part
