"""Upserts into an Iceberg table: its files without the keys of a decision, and the decision's rows.

pyiceberg's own upsert knows no deletes by a column (``notes/lake-upserts.md``). Of it come the plan
of the files, their rows without those of position deletes, and the overwrite.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import ConfigurationError
from airflow_eos.kinds.grouping import grouped
from airflow_eos.kinds.iceberg.partitions import (
    ORDER,
    SPEC,
    IcebergOrder,
    IcebergPartitioning,
    keys_within,
    text_of,
)
from airflow_eos.kinds.lake.parquet import HELD_BYTES, ROWS_AT_ONCE, pieces
from airflow_eos.kinds.lake.upsert import (
    LakeUpsert,
    Rewriting,
    left,
    may_touch,
    touched_of,
    written,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.io import FileIO
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table, Transaction
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from airflow_eos.kinds.lake.files import TableFiles
    from airflow_eos.kinds.lake.participant import DataFile, Partition

_EQUALITY = "total-equality-deletes"


def why_not(head: Snapshot | None) -> str | None:
    """Return why rows of a table cannot be replaced; None: they can."""
    summary = None if head is None else head.summary
    if summary is not None and (summary[_EQUALITY] or "0") != "0":
        return "it has equality deletes, which pyiceberg cannot read: let Flink or Spark compact it"
    return None


def waiting_rows(rows: pa.Schema, table: Schema, upsert: LakeUpsert) -> pa.Schema:
    """Return those of the rows' columns that the table is to have; a key is never null."""
    import pyarrow as pa

    there = {field.name for field in table.fields}
    return pa.schema(
        [
            field.with_nullable(field.nullable and field.name not in upsert.key)
            for field in rows
            if field.name != upsert.deleted or field.name in there
        ]
    )


def renamed(files: Iterable[Schema], table: Schema) -> dict[str, str]:
    """Return what columns of waiting rows are called in the table, where it is another name."""
    return {
        field.name: name
        for each in files
        for field in each.fields
        if (name := table.find_column_name(field.field_id)) not in (None, field.name)
    }


def lacking(key: Sequence[str], file: Schema, table: Schema) -> list[str]:
    """Return the columns of the key that the table no longer has."""
    return [
        field.name
        for field in file.fields
        if field.name in key and table.find_column_name(field.field_id) is None
    ]


@dataclass(frozen=True)
class Overwriting:
    """A look at a table whose files are read and written anew.

    Attributes:
        table: as it was looked at.
        head: the snapshot that is read; None: there is no row.
        metadata: of the table, with the columns that it gets.
        files: of its folder.
        data: what the path of a data file begins with.
        compression: of Parquet.
    """

    table: Table
    head: Snapshot | None
    metadata: TableMetadata
    files: TableFiles
    data: str
    compression: str

    def rewritten(self, doing: Rewriting) -> tuple[list[DataFile], list[FileScanTask]]:
        """Write what a decision makes of the table, durably; return files to add and to remove.

        Raises:
            ConfigurationError: a file has rows deleted in a way that pyiceberg cannot read.
            FileNotFoundError: a file of the table is gone.
        """
        there = ((_name(task), task) for task in self._candidates(doing.changes.keys))
        added, removed = doing.of(there, self._new, self._without)
        if {task.file.spec_id for task in removed} - whole_specs(self.metadata):
            raise self._refused("files with its keys are of a partition whose column was dropped")
        return added, removed

    def _candidates(self, keys: pa.Table) -> list[FileScanTask]:
        """Return the files that may have rows of the keys, by their partitions and bounds."""
        if self.head is None or not len(keys):
            return []
        scan = self.table.scan(_between(keys), snapshot_id=self.head.snapshot_id)
        try:
            tasks = [task for task in scan.plan_files() if self._may_have(task, keys)]
        except ValueError as error:
            raise self._refused(error) from error
        bounds = {
            name: _bounds(tasks, self._schema, keys.schema.field(name))
            for name in keys.column_names
            if _is_exact(keys.schema.field(name))
        }
        may = may_touch(keys, bounds, len(tasks))
        return [task for task, is_one in zip(tasks, may, strict=True) if is_one]

    def _refused(self, why: object) -> ConfigurationError:
        return ConfigurationError(
            f"Rows of the Iceberg table {'.'.join(self.table.name())} cannot be replaced: {why}. "
            "Nothing was dropped, and nothing is visible yet: let another engine rewrite the "
            "table's files, then start again."
        )

    def _may_have(self, task: FileScanTask, keys: pa.Table) -> bool:
        spec = task.file.spec_id
        if spec not in self._within:
            specs = self.table.metadata.specs()
            self._within[spec] = keys_within(specs[spec], self._schema, keys)
        return all(
            text_of(kind, task.file.partition[at]) in values
            for at, (kind, values) in self._within[spec].items()
        )

    def _new(self, rows: pa.Table) -> Iterator[DataFile]:
        """Write rows, a file for each partition."""
        import pyarrow as pa

        order = self.metadata.sort_order()
        sort = None if order.is_unsorted else IcebergOrder(order, self._schema)
        names = {*rows.column_names}
        schema = pa.schema([field for field in self._columns if field.name in names])
        for batch in rows.combine_chunks().to_batches() if len(rows) else ():
            keys = self._cut.keys(batch)
            for first, part in grouped(batch, keys):
                partition = self._cut.partition([key[first] for key in keys])
                table = pa.Table.from_batches([part])
                batches = (table if sort is None else sort(table)).to_batches()
                told = {} if sort is None else {ORDER: order.order_id}
                yield self._written(partition, schema, batches, told)

    def _without(self, task: FileScanTask, keys: pa.Table) -> list[DataFile] | None:
        """Write a file of the table without the keys; None: it has none of them."""
        import pyarrow as pa

        nullable = pa.schema([field.with_nullable(nullable=True) for field in keys.schema])
        gone = touched_of(pieces(self._read(task, keys.column_names, nullable)), keys)
        if not gone.any():
            return None
        if gone.all():
            return []
        stay = left(self._read(task, self._columns.names, self._columns), ~gone)
        if task.file.spec_id != self.metadata.default_spec_id:
            return [file for part in pieces(stay, HELD_BYTES) for file in self._new(part)]
        order = task.file.sort_order_id
        told = {} if order is None else {ORDER: order}
        partition = self._cut.of_record(task.file.partition)
        return [self._written(partition, self._columns, stay, told)]

    def _read(
        self, task: FileScanTask, names: Sequence[str], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan
        from pyiceberg.manifest import FileFormat

        wanted = self._schema.select(*names)
        if task.file.file_format == FileFormat.PARQUET:
            found = read_slowly(task, self.metadata, self._io, wanted)
        else:  # of which the library holds the whole file
            found = ArrowScan(self.metadata, self._io, wanted, AlwaysTrue()).to_record_batches(
                [task]
            )
        for batch in found:
            yield from pa.Table.from_batches([batch]).select(schema.names).cast(schema).to_batches()

    def _written(
        self,
        partition: Partition,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        told: Mapping[str, Any],
    ) -> DataFile:
        return written(
            self.files,
            self.data,
            partition,
            schema,
            batches,
            compression=self.compression,
            table={SPEC: self.metadata.default_spec_id, **told},
        )

    @property
    def _io(self) -> FileIO:
        return self.table.io

    @property
    def _schema(self) -> Schema:
        return self.metadata.schema()

    @cached_property
    def _columns(self) -> pa.Schema:
        return self._schema.as_arrow()

    @cached_property
    def _cut(self) -> IcebergPartitioning:
        return IcebergPartitioning(self.metadata.spec(), self._schema)

    @cached_property
    def _within(self) -> dict[int, dict[int, Any]]:
        return {}


def read_slowly(
    task: FileScanTask, metadata: TableMetadata, io: FileIO, wanted: Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file as the library does, of which it holds the whole file.

    Args:
        task: the file, and its position deletes.
        metadata: of the table.
        io: of the table.
        wanted: the columns.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyiceberg.io import pyarrow as library
    from pyiceberg.schema import prune_columns
    from pyiceberg.types import ListType, MapType

    file, spec = task.file, metadata.specs().get(task.file.spec_id)
    gone = library._read_all_delete_files(io, [task]).get(file.file_path, [])  # noqa: SLF001
    places = np.sort(np.concatenate([np.zeros(0, np.int64), *map(np.asarray, gone)]))
    ids = {n for n in wanted.field_ids if not isinstance(wanted.find_type(n), MapType | ListType)}
    at = 0
    with io.new_input(file.file_path).open() as data:
        read = pq.ParquetFile(data, coerce_int96_timestamp_unit="us")
        there = library.pyarrow_to_schema(
            read.schema_arrow, metadata.name_mapping(), downcast_ns_timestamp_to_us=True
        )
        lacks = library._get_column_projection_values(  # noqa: SLF001
            file, wanted, metadata.schema(), spec, there.field_ids
        )
        of_file = prune_columns(there, ids, select_full_types=False)
        names = [field.name for field in of_file.fields]
        for batch in read.iter_batches(ROWS_AT_ONCE, columns=names):
            stay = np.ones(len(batch), dtype=bool)
            first, after = places.searchsorted((at, at + len(batch)))
            stay[places[first:after] - at] = False
            at += len(batch)
            yield library._to_requested_schema(  # noqa: SLF001
                wanted,
                of_file,
                batch.filter(pa.array(stay)),
                downcast_ns_timestamp_to_us=True,
                projected_missing_fields=lacks,
                allow_timestamp_tz_mismatch=True,
            )


def _name(task: FileScanTask) -> str:
    """Return a name of the rows that a file has: another delete makes them others."""
    return "\n".join([task.file.file_path, *sorted(each.file_path for each in task.delete_files)])


def _is_exact(field: pa.Field) -> bool:
    """Whether bounds of such a column are no closer than its values, whoever wrote them."""
    import pyarrow as pa

    kind = field.type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return "." not in field.name and bool(
        is_text or pa.types.is_integer(kind) or pa.types.is_date32(kind)
    )


def _between(keys: pa.Table) -> BooleanExpression:
    """Return a filter by which manifests and files are left out, before any is looked into."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyiceberg import expressions
    from pyiceberg.expressions import AlwaysTrue, And

    at_least: Any = expressions.GreaterThanOrEqual
    at_most: Any = expressions.LessThanOrEqual
    found: BooleanExpression = AlwaysTrue()
    for field in keys.schema:
        if _is_exact(field) and not pa.types.is_date32(field.type):
            least, most = pc.min_max(keys[field.name]).as_py().values()
            if pa.types.is_integer(field.type) and least < -(2 ** (field.type.bit_width - 2)):
                continue  # cut to tens it may be below the type, where engines begin at its top
            found = And(found, at_least(field.name, least), at_most(field.name, most))
    return found


def _bounds(
    tasks: Sequence[FileScanTask], schema: Schema, field: pa.Field
) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    import pyarrow as pa

    number = schema.find_field(field.name).field_id

    def side(bounds: Sequence[Mapping[int, bytes] | None]) -> pa.ChunkedArray:
        told = [_bound(field.type, (each or {}).get(number)) for each in bounds]
        kind = pa.int32() if pa.types.is_date32(field.type) else field.type
        return pa.chunked_array([pa.array(told, kind).cast(field.type)])

    return (
        side([task.file.lower_bounds for task in tasks]),
        side([task.file.upper_bounds for task in tasks]),
    )


def _bound(kind: pa.DataType, told: bytes | None) -> int | str | None:
    """Return a bound; one that was written before the column was widened is shorter."""
    import pyarrow as pa

    if told is None:
        return None
    if pa.types.is_integer(kind) or pa.types.is_date32(kind):
        return int.from_bytes(told, "little", signed=True)
    try:
        return told.decode()
    except UnicodeDecodeError:
        return None


def staged_snapshot(
    change: Transaction, branch: str, summary: Mapping[str, str], *, replaces: bool
) -> Any:
    """Return the library's append, or its overwrite: both merge manifests.

    Its overwrite alone adds two to the table with each commit, one of which has no file of a
    reader. Manifests of a spec whose column was dropped it cannot write, so they stay as they are.
    It dates a snapshot by this machine's clock. Iceberg in Java reads no table, and takes no commit
    of a REST catalog, where a snapshot is a minute older than the one before: so none is older.
    """
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.table.snapshots import Operation
    from pyiceberg.table.update.snapshot import _MergeAppendFiles, _OverwriteFiles

    class Append(_MergeAppendFiles):
        def _commit(self) -> Any:
            staged: Any = super()._commit()
            (added, *others), required = staged
            least = self._transaction.table_metadata.last_updated_ms + 1
            dated = {"timestamp_ms": max(added.snapshot.timestamp_ms, least)}
            snapshot = added.snapshot.model_copy(update=dated)
            return (added.model_copy(update={"snapshot": snapshot}), *others), required

        def _process_manifests(self, manifests: list[Any]) -> list[Any]:
            whole = whole_specs(self._transaction.table_metadata)
            apart = [each for each in manifests if each.partition_spec_id not in whole]
            merged = [each for each in manifests if each.partition_spec_id in whole]
            return [*super()._process_manifests(merged), *apart]

    class Overwrite(_OverwriteFiles, Append):
        def _existing_manifests(self) -> list[Any]:
            return [
                each
                for each in super()._existing_manifests()
                if each.has_added_files() or each.has_existing_files()
            ]

        def _build_delete_files_partition_predicate(self) -> None:
            try:
                super()._build_delete_files_partition_predicate()
            except ValueError:  # it has no filter for a partition of NaN: no manifest is left out
                for file in self._deleted_data_files:
                    self.partition_filters[file.spec_id] = AlwaysTrue()

    kind = Overwrite if replaces else Append
    return kind(
        operation=Operation.OVERWRITE if replaces else Operation.APPEND,
        transaction=change,
        io=change._table.io,  # noqa: SLF001 - as the library's own
        branch=branch,
        snapshot_properties=dict(summary),
    )


def whole_specs(metadata: TableMetadata) -> set[int]:
    """Return the specs whose columns the table has, by which manifests can be written."""
    name = metadata.schema().find_column_name
    return {
        number
        for number, spec in metadata.specs().items()
        if None not in [name(field.source_id) for field in spec.fields]
    }
