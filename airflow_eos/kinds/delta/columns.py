"""How rows are kept in files of a Delta table: a partition's values as texts, and statistics.

Both are as Delta's writer for Spark has them, since readers leave out files by them; where that
one cuts a bound, a bound that says more is written, and never one that says less.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from airflow_eos.kinds.files.folder import partition
from airflow_eos.kinds.lake.participant import Partition

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

# --- partitions -----------------------------------------------------------------------------------


NO_PARTITION = ("binary", "variant")
"""The flat types by whose texts engines do not agree: of them no partition is written."""
_FOLDER_BYTES = 255  # of a name on a disk
_DAYS = (-719162, 2932896)  # of the years 1 to 9999, from 1970: others are no dates in a text
_SECONDS = (_DAYS[0] * 86400, (_DAYS[1] + 1) * 86400)


@dataclass(frozen=True)
class DeltaPartitions:
    """See :class:`~airflow_eos.kinds.lake.task.Partitioning`: the columns that a table is cut by.

    Values are in the log, and not in the files.

    Attributes:
        schema: the columns, in the order that the table has them in.
    """

    schema: pa.Schema

    @property
    def columns(self) -> tuple[str, ...]:
        """See :meth:`Partitioning.columns`."""
        return tuple(self.schema.names)

    @property
    def texts(self) -> list[str]:
        """Those of the columns that are texts: an empty one is null to the table."""
        import pyarrow as pa

        return [field.name for field in self.schema if pa.types.is_string(field.type)]

    def keys(self, rows: pa.RecordBatch) -> Sequence[pa.Array]:
        """See :meth:`Partitioning.keys`."""
        return [rows.column(name) for name in self.columns]

    def partition(self, values: Sequence[pa.Scalar]) -> Partition:
        """See :meth:`Partitioning.partition`."""
        texts = tuple(text_of(value) for value in values)
        folder = partition(self.columns, texts)
        if any(len(each.encode()) > _FOLDER_BYTES for each in folder.split("/")):
            folder = hashlib.sha256(folder.encode()).hexdigest()  # the log alone has the values
        return Partition(f"{folder}/" if folder else "", texts)

    def in_file(self, rows: pa.Schema) -> pa.Schema:
        """Return the columns of a file for those of its rows."""
        import pyarrow as pa

        return pa.schema([field for field in rows if field.name not in self.columns])

    def in_rows(self, rows: pa.Table, values: Sequence[str | None]) -> pa.Table:
        """Return the rows of a file with the columns of its partition."""
        import pyarrow as pa

        for field, value in zip(self.schema, values, strict=True):
            scalar = pa.scalar(value, pa.string()).cast(field.type)
            rows = rows.append_column(field, pa.repeat(scalar, len(rows)))
        return rows


def text_of(value: pa.Scalar) -> str | None:
    """Return a partition's value as Delta's log has it: an instant in UTC, an empty text as null.

    Raises:
        DeliveryError: a date or time that no reader would find by its text.
    """
    import pyarrow as pa

    if not value.is_valid:
        return None
    kind = value.type
    if pa.types.is_boolean(kind):
        return "true" if value.as_py() else "false"
    if pa.types.is_date32(kind):
        return _moment(value.value, "D")
    if pa.types.is_timestamp(kind):
        micros = value.cast(pa.timestamp("us", kind.tz)).value
        text = _moment(micros, "us")
        return f"{text}Z" if kind.tz else text.replace("T", " ")
    if pa.types.is_decimal(kind):
        return format(value.as_py(), "f")
    if pa.types.is_float32(kind):
        return _floating(str(value.cast(pa.string()).as_py()))
    if pa.types.is_floating(kind):
        return _floating(repr(value.as_py()))
    return str(value.as_py()) or None


def _floating(text: str) -> str:
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(text, text)


def _moment(value: int, unit: str) -> str:
    import numpy as np

    from airflow_eos.errors import DeliveryError

    first, after = (_DAYS[0], _DAYS[1] + 1) if unit == "D" else (each * 10**6 for each in _SECONDS)
    if not first <= value < after:
        raise DeliveryError(
            f"A row has a date outside of the years 1 to 9999 ({value} {unit} from 1970) in a "
            "column that the Delta table is partitioned by. Nothing is promised: filter it out."
        )
    return str(np.array(value, dtype=f"datetime64[{unit}]"))


# --- statistics -----------------------------------------------------------------------------------


_INDEXED = "delta.dataSkippingNumIndexedCols"
_NAMED = "delta.dataSkippingStatsColumns"
_INDEXED_DEFAULT = 32
_PREFIX = 32  # characters of a text
_LAST = "\U0010ffff"
_JSON = msgspec.json.Encoder(decimal_format="number")

Path = tuple[str, ...]


class _Leaf(NamedTuple):
    """A column of a file without columns in it: its place, and its number among Parquet's."""

    path: Path
    kind: pa.DataType
    number: int


def indexed(fields: Mapping[str, Any], configuration: Mapping[str, str]) -> frozenset[Path]:
    """Return the columns that a table wants statistics of.

    Args:
        fields: the table's columns, in Delta's JSON.
        configuration: the table's properties.
    """
    leaves = list(_paths(fields, ()))
    named = configuration.get(_NAMED)
    if named is not None:
        wanted = {name.strip().replace("`", "") for name in named.split(",")}
        return frozenset(
            path
            for path in leaves
            if any(".".join(path[:end]) in wanted for end in range(1, len(path) + 1))
        )
    most = int(configuration.get(_INDEXED, _INDEXED_DEFAULT))
    return frozenset(leaves if most < 0 else leaves[:most])


def _paths(fields: Mapping[str, Any], above: Path) -> Iterator[Path]:
    for field in fields["fields"]:
        kind, path = field["type"], (*above, field["name"])
        if isinstance(kind, dict) and kind["type"] == "struct":
            yield from _paths(kind, path)
        else:
            yield path


def statistics(footer: pq.FileMetaData, wanted: frozenset[Path]) -> str:
    """Return a file's statistics, as Delta's log has them, from what its footer says.

    Args:
        footer: of the Parquet file.
        wanted: the columns to tell of; see :func:`indexed`.
    """
    found: dict[str, Any] = {
        "numRecords": footer.num_rows,
        "minValues": {},
        "maxValues": {},
        "nullCount": {},
    }
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    leaves, _ = _leaves(footer.schema.to_arrow_schema(), (), 0)
    for leaf in leaves:
        if leaf.path not in wanted:
            continue
        told = [group.column(leaf.number).statistics for group in groups]
        if not all(each is not None and each.has_null_count for each in told):
            continue
        _put(found["nullCount"], leaf.path, sum(each.null_count for each in told))
        least, most = _bounds(leaf.kind, told, groups)
        if least is not None:
            _put(found["minValues"], leaf.path, least)
        if most is not None:
            _put(found["maxValues"], leaf.path, most)
    return _JSON.encode(found).decode()


def _leaves(fields: Any, above: Path, number: int) -> tuple[list[_Leaf], int]:
    """Return the flat columns, and how many of Parquet's columns were passed."""
    found: list[_Leaf] = []
    for field in fields:
        kind, path = field.type, (*above, field.name)
        if _is_struct(kind):
            inner, number = _leaves(list(kind), path, number)
            found += inner
        elif kind.num_fields:
            number += _width(kind)
        else:
            found.append(_Leaf(path, kind, number))
            number += 1
    return found, number


def _width(kind: pa.DataType) -> int:
    """Return the number of Parquet's columns of a type."""
    return sum(_width(kind.field(at).type) for at in range(kind.num_fields)) or 1


def _is_struct(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_struct(kind))


def _bounds(kind: pa.DataType, told: Sequence[Any], groups: Sequence[Any]) -> tuple[Any, Any]:
    """Return the least and the greatest value of a column as JSON; None: not known, or none."""
    import pyarrow as pa

    full = [
        each
        for each, group in zip(told, groups, strict=True)
        if each.has_min_max or each.null_count < group.num_rows
    ]
    if not full or not all(each.has_min_max for each in full):
        return None, None  # nulls alone; or texts that are too long for a footer, or only NaN
    if pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        least, most = min(each.min_raw for each in full), max(each.max_raw for each in full)
        return _time(kind, least), _time(kind, most)
    if pa.types.is_boolean(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return None, None
    least, most = min(each.min for each in full), max(each.max for each in full)
    if pa.types.is_floating(kind):  # a footer passes over NaN, which is above all
        return (least if math.isfinite(least) else None), None
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return least[:_PREFIX], _above(most)
    return least, most


def _above(text: str) -> str:
    """Return a short text that is no less than ``text``."""
    end = _PREFIX
    while text[end : end + 1] == _LAST:
        end += 1
    return text if end >= len(text) else text[:end] + _LAST


def _time(kind: pa.DataType, value: int) -> str | None:
    import numpy as np
    import pyarrow as pa

    if pa.types.is_date32(kind):
        is_known = _DAYS[0] <= value <= _DAYS[1]
        return str(np.datetime64(value, "D")) if is_known else None
    if kind.unit != "us" or not _SECONDS[0] <= value // 10**6 < _SECONDS[1]:
        return None
    text = str(np.datetime_as_string(np.datetime64(value, "us"), unit="us"))
    return f"{text}Z" if kind.tz else text


def _put(into: dict[str, Any], path: Path, value: Any) -> None:
    for name in path[:-1]:
        into = into.setdefault(name, {})
    into[path[-1]] = value
