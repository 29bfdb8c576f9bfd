"""Columns that rows have and an Iceberg table has not: planned for tasks, added by the commit.

A task writes values under the ids that the table would give the new columns by now; the commit
gives them these ids, or does not take the files: an id that somebody else has taken since would
show our values as those of another column.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update.schema import UpdateSchema
    from pyiceberg.types import NestedField

LAST = "columns"
"""The table's newest id of a column when a task's query started, in the table of ``DataFile``."""


def without_snapshots(metadata: TableMetadata, but: Collection[int] = ()) -> TableMetadata:
    """Return the metadata without what grows with each commit, but snapshots of these ids."""
    kept = [each for each in metadata.snapshots if each.snapshot_id in but]
    return metadata.model_copy(update={"snapshots": kept, "snapshot_log": [], "metadata_log": []})


def staged(metadata: TableMetadata) -> Transaction:
    """Return changes of a table that can be looked at, and never committed."""
    from pyiceberg.catalog.noop import NoopCatalog
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.table import Table

    alone = without_snapshots(metadata)
    return changing(Table(("table",), alone, "", PyArrowFileIO(), NoopCatalog("none")))


def changing(table: Table) -> Transaction:
    """Return changes of a table; the library's own copy the whole metadata at each look at them."""
    from pyiceberg.table import Transaction

    class Change(Transaction):
        _of: tuple[Any, ...] = (None, None)
        _found: TableMetadata

        @property
        def table_metadata(self) -> TableMetadata:
            base, updates = self._of
            if base is not self._table.metadata or updates is not self._updates:
                self._of, self._found = (
                    (self._table.metadata, self._updates),
                    super().table_metadata,
                )
            return self._found

    return Change(table)


def evolved(metadata: TableMetadata, rows: pa.Schema) -> Schema:
    """Return the table's columns with those of the rows added, and widened as Iceberg allows.

    Raises:
        ValueError: with the column that cannot become what the rows have.
    """
    from pyiceberg.exceptions import ValidationError

    change = staged(metadata)
    try:
        with change.update_schema() as update:
            update.union_by_name(_as_strict_as(metadata.schema().as_arrow(), rows))
    except ValidationError as error:
        raise ValueError(str(error)) from error
    found = change.table_metadata.schema()
    for field in _below(metadata.schema().fields):  # the library looks at the precision alone
        mine, theirs = field.field_type, found.find_type(field.field_id)
        if getattr(mine, "scale", 0) != getattr(theirs, "scale", 0):
            raise ValueError(f"column {field.name} is {theirs}, and {mine} in the table")
    return found


def _as_strict_as(table: pa.Schema, rows: pa.Schema) -> pa.Schema:
    """Return the rows' columns as nullable as the table's; new ones may always be null."""
    import pyarrow as pa

    strict = {field.name for field in table if not field.nullable}
    return pa.schema([field.with_nullable(field.name not in strict) for field in rows])


def conflict(metadata: TableMetadata, file: Schema, last: int) -> str | None:
    """Return why the table cannot have the new columns of a file by their ids; None where it can.

    Args:
        metadata: of the table.
        file: the columns of the file.
        last: the newest id of a column when the file's query started.
    """
    for field in _below(file.fields):
        number = field.field_id
        if last < number <= metadata.last_column_id and not _was(metadata, field):
            return f"column {field.name} was to have the id {number}, which another has by now"
    new = sorted(f.field_id for f in _below(file.fields) if f.field_id > metadata.last_column_id)
    first = metadata.last_column_id + 1
    if new != list(range(first, first + len(new))):
        return f"the new columns were to have the ids {new}, and the next one is {first}"
    return None


def evolve(change: Transaction, file: Schema) -> None:
    """Stage the new columns of a file, and wider types, in a commit; nothing where it has none."""
    table = change.table_metadata.schema()
    if all(table.find_column_name(f.field_id) is not None for f in _below(file.fields)) and not any(
        _is_wider(table, field) for field in _below(file.fields)
    ):
        return
    with change.update_schema() as update:
        _add(update, change.table_metadata, file.fields, ())


def _add(
    update: UpdateSchema,
    metadata: TableMetadata,
    fields: Sequence[NestedField],
    within: tuple[str, ...],
) -> None:
    from pyiceberg.types import StructType

    table = metadata.schema()
    for field in fields:
        name = table.find_column_name(field.field_id)
        if name is None:
            if field.field_id > metadata.last_column_id:  # else it was dropped since
                update.add_column((*within, field.name), field.field_type)
        elif isinstance(field.field_type, StructType):
            _add(update, metadata, field.field_type.fields, tuple(name.split(".")))
        elif _is_wider(table, field):
            update.update_column(tuple(name.split(".")), field.field_type)


def _is_wider(table: Schema, field: NestedField) -> bool:
    """Whether the table's type of this column can become the field's, which is another."""
    from pyiceberg.exceptions import ResolveError
    from pyiceberg.schema import promote

    if not field.field_type.is_primitive or table.find_column_name(field.field_id) is None:
        return False
    mine = table.find_type(field.field_id)
    try:
        return mine != field.field_type and promote(mine, field.field_type) == field.field_type
    except ResolveError:
        return False


def _was(metadata: TableMetadata, field: NestedField) -> bool:
    """Whether a column had this id under this name in any schema: added by us, before."""
    names = (each.find_column_name(field.field_id) for each in metadata.schemas)
    return any(name is not None and name.rpartition(".")[2] == field.name for name in names)


def _below(fields: Iterable[NestedField]) -> Iterable[NestedField]:
    """Yield the fields and all within them."""
    for field in fields:
        yield field
        kind: Any = field.field_type
        parts = getattr(kind, "fields", None) or [
            part
            for name in ("element_field", "key_field", "value_field")
            if (part := getattr(kind, name, None)) is not None
        ]
        yield from _below(parts)
