"""Partitions and order of an Iceberg table: its spec, applied to the rows of tasks.

pyiceberg's own transforms work on whole columns. What a file is of goes through the decision as the
bytes that Iceberg gives single values (https://iceberg.apache.org/spec, appendix D), as hex.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote_plus

from airflow_eos.errors import ConfigurationError
from airflow_eos.kinds.grouping import grouped
from airflow_eos.kinds.lake.participant import Partition, require_package

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.sorting import SortField, SortOrder
    from pyiceberg.typedef import Record
    from pyiceberg.types import IcebergType, PrimitiveType

_FOLDER_AT_MOST = 200
"""Characters of a folder: a disk takes 255 bytes. Readers go by the values, never by the folder."""
SPEC, ORDER = "spec", "order"


@dataclass(frozen=True)
class IcebergPartitioning:
    """See :class:`~airflow_eos.kinds.lake.task.Partitioning`: by a spec of the table."""

    spec: PartitionSpec
    schema: Schema

    @property
    def columns(self) -> Sequence[str]:
        """The columns that the spec is made of, each once."""
        names = [self.schema.find_column_name(each.source_id) for each in _cutting(self.spec)]
        return list(dict.fromkeys(name for name in names if name is not None))

    @property
    def is_identity(self) -> bool:
        """Whether rows are of one partition where these columns are equal, and only there."""
        return all(str(each.transform) == "identity" for each in _cutting(self.spec))

    def keys(self, rows: pa.RecordBatch) -> Sequence[pa.Array]:
        """See :meth:`Partitioning.keys`: the values that the transforms give."""
        return [transformed(each, self.schema, rows) for each in self.spec.fields]

    def partition(self, values: Sequence[pa.Scalar]) -> Partition:
        """See :meth:`Partitioning.partition`."""
        return self._of(tuple(map(_text, self._types, values)))

    def of_record(self, record: Record) -> Partition:
        """Return the partition whose values a manifest has."""
        values = (record[at] for at in range(len(self.spec.fields)))
        return self._of(tuple(map(text_of, self._types, values)))

    def _of(self, texts: tuple[str | None, ...]) -> Partition:
        if texts not in self._known:
            folder = _folder(self.spec, self.schema, texts) if texts else ""
            self._known[texts] = Partition(folder, texts)
        return self._known[texts]

    def codes(self, *columns: pa.Array) -> pa.Array:
        """Return a number for each row: the same for all rows of a partition, in every task."""
        import numpy as np
        import pyarrow as pa

        rows = _nested(self.columns, columns)
        at = pa.RecordBatch.from_arrays([pa.array(np.arange(len(rows)))], ["at"])
        found = np.zeros(len(rows), dtype=np.int64)
        keys = self.keys(rows)
        for first, part in grouped(at, keys):
            texts = map(_text, self._types, [key[first] for key in keys])
            found[part.column(0).to_numpy()] = zlib.crc32(repr(list(texts)).encode())
        return pa.array(found)

    @cached_property
    def _known(self) -> dict[tuple[str | None, ...], Partition]:
        return {}

    @cached_property
    def _types(self) -> list[PrimitiveType]:
        return _types(self.spec, self.schema)


def _nested(names: Sequence[str], columns: Sequence[pa.Array]) -> pa.RecordBatch:
    """Return rows with each column under its name, the dots of which :func:`_column` takes."""
    import pyarrow as pa

    return pa.RecordBatch.from_arrays(list(columns), list(names))


def record_of(spec: PartitionSpec, schema: Schema, values: Sequence[str | None]) -> Record:
    """Return the values of a partition as manifests have them."""
    from pyiceberg.conversions import from_bytes
    from pyiceberg.typedef import Record

    told = [
        None if value is None else from_bytes(kind, bytes.fromhex(value))
        for kind, value in zip(_types(spec, schema), values, strict=True)
    ]
    return Record(*told)


def spec_of(metadata: TableMetadata, table: Mapping[str, Any]) -> PartitionSpec | None:
    """Return the spec that a file was written by; None where the table no longer knows it.

    An engine may forget a spec that no file of a snapshot has, and drop columns of a former one.
    """
    specs = metadata.specs()
    plain = next((each.spec_id for each in specs.values() if each.is_unpartitioned()), -1)
    found = specs.get(table.get(SPEC, plain))  # a former release wrote no other
    columns = metadata.schema().find_column_name
    if found is None or None in [columns(each.source_id) for each in _cutting(found)]:
        return None
    return found


def _cutting(spec: PartitionSpec) -> list[PartitionField]:
    """Return the fields of a spec but void ones, which stand in v1 for fields that were removed."""
    return [each for each in spec.fields if str(each.transform) != "void"]


def require_transforms(identifier: str, spec: PartitionSpec) -> None:
    """Refuse a spec that cannot be applied to rows here (ConfigurationError)."""
    from pyiceberg.transforms import IdentityTransform, UnknownTransform

    unknown = [str(each) for each in spec.fields if isinstance(each.transform, UnknownTransform)]
    if unknown:
        raise ConfigurationError(
            f"The Iceberg table {identifier} is partitioned by {', '.join(unknown)}, which this "
            "pyiceberg does not know: take one that does, or deliver into another table. Nothing "
            "was dropped."
        )
    if not all(isinstance(each.transform, IdentityTransform) for each in _cutting(spec)):
        require_package("iceberg", "pyiceberg_core")


def _types(spec: PartitionSpec, schema: Schema) -> list[PrimitiveType]:
    fields = spec.partition_type(schema).fields
    return cast("list[PrimitiveType]", [each.field_type for each in fields])


def _text(kind: PrimitiveType, value: pa.Scalar) -> str | None:
    """Return a value as hex of Iceberg's bytes for it: exact, also NaN and years beyond 9999."""
    import pyarrow as pa
    from pyiceberg.conversions import to_bytes

    if not value.is_valid:
        return None
    told = value.value if pa.types.is_temporal(value.type) else value.as_py()
    return to_bytes(kind, told).hex()


def text_of(kind: IcebergType, value: Any) -> str | None:
    """Return a value as manifests have it, as :func:`_text` returns it."""
    from pyiceberg.conversions import to_bytes

    return None if value is None else to_bytes(cast("PrimitiveType", kind), value).hex()


def keys_within(
    spec: PartitionSpec, schema: Schema, keys: pa.Table
) -> dict[int, tuple[IcebergType, set[str | None]]]:
    """Return, by their places in a spec, the fields that the keys cut, and their values there."""
    import pyarrow.compute as pc
    from pyiceberg.transforms import UnknownTransform

    found = {}
    for at, field in enumerate(spec.fields):
        if schema.find_column_name(field.source_id) not in keys.column_names:
            continue
        if not isinstance(field.transform, UnknownTransform):
            kind = field.transform.result_type(schema.find_type(field.source_id))
            values = pc.unique(transformed(field, schema, keys))
            found[at] = kind, {_text(cast("PrimitiveType", kind), each) for each in values}
    return found


def _folder(spec: PartitionSpec, schema: Schema, texts: tuple[str | None, ...]) -> str:
    """Return the folder that Iceberg's own writers give a partition; cut where it is too long."""
    whole = of_any_year(spec).partition_to_path(record_of(spec, schema, texts), schema)
    return "".join(f"{each[:_FOLDER_AT_MOST]}/" for each in whole.split("/"))


def of_any_year(spec: PartitionSpec) -> PartitionSpec:
    """Return the spec, with a name for each partition: the library fails for years beyond 9999.

    It makes such names for the summary of a commit, also where it then leaves them out.
    """
    return _of_any_year().model_validate(spec.model_dump(by_alias=True))


@cache
def _of_any_year() -> type[PartitionSpec]:
    """Return the class, once: pydantic takes milliseconds to make it."""
    from pyiceberg.partitioning import PartitionSpec

    class OfAnyYear(PartitionSpec):
        def partition_to_path(self, data: Record, schema: Schema) -> str:
            try:
                return super().partition_to_path(data, schema)
            except (ArithmeticError, ValueError):
                fields = zip(self.fields, range(len(self.fields)), strict=True)
                return "/".join(quote_plus(f"{each.name}={data[at]}", "=") for each, at in fields)

    return OfAnyYear


def transformed(
    field: Any, schema: Schema, rows: pa.RecordBatch | pa.Table
) -> pa.Array | pa.ChunkedArray:
    """Return what the transform of a field of a spec, or of an order, makes of its column."""
    import pyarrow as pa

    if str(field.transform) == "void":
        return pa.nulls(rows.num_rows)
    source = schema.find_type(field.source_id)
    column = _column(rows, schema, field.source_id)
    return field.transform.pyarrow_transform(source)(column)


def _column(
    rows: pa.RecordBatch | pa.Table, schema: Schema, source_id: int
) -> pa.Array | pa.ChunkedArray:
    """Return a column of the rows, at any depth, in the table's type; nulls where they lack it."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    kind = _small(schema_to_pyarrow(schema.find_type(source_id)))
    name = schema.find_column_name(source_id) or ""
    if name in rows.schema.names:
        return rows.column(name).cast(kind)
    first, *within = name.split(".")
    if first not in rows.schema.names:
        return pa.nulls(rows.num_rows, kind)
    return pc.struct_field(rows.column(first), within).cast(kind)


def _small(kind: pa.DataType) -> pa.DataType:
    """Return the type that the transforms know: they do not truncate ``large_binary``."""
    import pyarrow as pa

    wide = {pa.large_binary(): pa.binary(), pa.large_string(): pa.string()}
    return wide.get(kind, kind)


# --- order ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IcebergOrder:
    """A function that sorts the rows of a file by an order of the table."""

    order: SortOrder
    schema: Schema

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return the rows in this order; equal ones stay as they came."""
        import pyarrow as pa
        import pyarrow.compute as pc

        columns: dict[str, Any] = {}
        keys: list[tuple[str, str]] = []
        for number, field in enumerate(self.order.fields):
            for at, (column, way) in enumerate(self._keys(field, rows)):
                columns[f"{number}.{at}"] = column
                keys.append((f"{number}.{at}", way))
        return rows.take(pc.sort_indices(pa.table(columns), sort_keys=keys))

    def _keys(self, field: SortField, rows: pa.Table) -> list[tuple[Any, str]]:
        """Return two columns: first whether a value is null, for which Arrow has one place."""
        import pyarrow.compute as pc
        from pyiceberg.table.sorting import NullOrder, SortDirection

        column = _ordered(transformed(field, self.schema, rows))
        nulls = "descending" if field.null_order == NullOrder.NULLS_FIRST else "ascending"
        way = "ascending" if field.direction == SortDirection.ASC else "descending"
        return [(pc.is_null(column), nulls), (column, way)]


def _ordered(column: Any) -> Any:
    """Return floats as whole numbers in Iceberg's order: -0.0 before 0.0, NaN after all."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_floating(column.type):
        return column
    whole = pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)
    bits = np.where(np.isnan(whole), np.nan, whole).view(np.int64)
    return pa.array(
        bits ^ ((bits >> 63) & np.iinfo(np.int64).max),
        mask=pc.is_null(column, nan_is_null=False).to_numpy(zero_copy_only=False),
    )
