"""Which columns fit an Iceberg table, and by which ids its files hold them.

Readers find a column by the id that the file has for it (``PARQUET:field_id``). Without ids they go
by the table's mapping of names, which may be stale, or by names: a column that was renamed, or made
again under an old name, then has the values of another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_eos.participants.lake.nullability import is_looser

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType, NestedField

_ID = b"PARQUET:field_id"


def misfit(rows: pa.Schema, table: pa.Schema) -> str | None:
    """Why rows of these columns cannot be appended to the table; None where they can.

    A column that the table allows to be null may be missing.
    """
    ours = {field.name: field for field in rows}
    theirs = {field.name: field for field in table}
    foreign = sorted(ours.keys() - theirs.keys())
    if foreign:
        return f"the table has no column {', '.join(foreign)}"
    for name, field in theirs.items():
        nullable = name not in ours or ours[name].nullable
        if nullable and not field.nullable:
            return f"column {name} may be null or missing, and the table says it is required"
        if name in ours and plain(ours[name].type) != plain(field.type):
            return (
                f"column {name} is {plain(ours[name].type)}, and {plain(field.type)} in the table"
            )
        if name in ours and is_looser(ours[name].type, field.type, _within):
            return f"column {name} may be null within, where the table says it is required"
    return None


def _within(kind: pa.DataType) -> list[tuple[bool, pa.DataType]]:
    """See :data:`Within`; maps are refused before, by their rows' fingerprint."""
    import pyarrow as pa

    fields: list[pa.Field] = []
    if pa.types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        fields = [kind.value_field]
    return [(field.nullable, field.type) for field in fields]


def plain(kind: pa.DataType) -> str:
    """A type without what is no matter of its bytes: nullability within, zones, wide offsets."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        fields = (kind.field(at) for at in range(kind.num_fields))
        return f"struct<{', '.join(f'{each.name}: {plain(each.type)}' for each in fields)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list<{plain(kind.value_type)}>"
    if pa.types.is_timestamp(kind):
        return f"timestamp[{kind.unit}{', UTC' if kind.tz is not None else ''}]"
    return str(kind).removeprefix("large_")


def with_ids(rows: pa.Schema, table: pa.Schema) -> pa.Schema:
    """The columns of rows that fit (see :func:`misfit`), each part with its id in the table."""
    import pyarrow as pa

    return pa.schema([_numbered(field, table.field(field.name)) for field in rows])


def _numbered(ours: pa.Field, theirs: pa.Field) -> pa.Field:
    import pyarrow as pa

    kind, other = ours.type, theirs.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_numbered(field, other.field(field.name)) for field in kind.fields])
    elif pa.types.is_list(kind):
        kind = pa.list_(_numbered(kind.value_field, other.value_field))
    elif pa.types.is_large_list(kind):
        kind = pa.large_list(_numbered(kind.value_field, other.value_field))
    elif pa.types.is_map(kind):
        key, item = _numbered(kind.key_field, other.key_field), kind.item_field
        kind = pa.map_(key, _numbered(item, other.item_field))
    return pa.field(ours.name, kind, ours.nullable, {_ID: theirs.metadata[_ID]})


def drifted(file: Schema, table: Schema) -> str | None:
    """Why a file's columns are not those of the table any more, by their ids; None where they are.

    A column that was renamed, moved, widened or dropped since is no reason: readers do with this
    file what they do with all that were there before it.
    """
    return _drifted(file.fields, table.fields, "")


def _drifted(file: Sequence[NestedField], table: Sequence[NestedField], within: str) -> str | None:
    ours, theirs = ({field.field_id: field for field in each} for each in (file, table))
    made_again = {field.name for key, field in theirs.items() if key not in ours}
    for key, field in ours.items():
        if key not in theirs and field.name in made_again:
            return f"column {within}{field.name} was dropped and made again, as another column"
    for field in table:
        name, mine = f"{within}{field.name}", ours.get(field.field_id)
        if field.required and (mine is None or not mine.required):
            return f"column {name} may be null or missing, and the table says it is required"
        why = None if mine is None else _kind_drifted(mine.field_type, field.field_type, name)
        if why is not None:
            return why
    return None


def _kind_drifted(mine: IcebergType, theirs: IcebergType, name: str) -> str | None:
    from pyiceberg.exceptions import ResolveError
    from pyiceberg.schema import promote
    from pyiceberg.types import ListType, MapType, StructType

    if type(mine) is type(theirs) and isinstance(mine, StructType | ListType | MapType):
        return _drifted(_parts(mine), _parts(theirs), f"{name}.")
    try:
        if mine != theirs:
            promote(mine, theirs)
    except ResolveError:
        return f"column {name} is {mine}, and {theirs} in the table"
    return None


def _parts(kind: Any) -> Sequence[NestedField]:
    from pyiceberg.types import ListType, StructType

    if isinstance(kind, StructType):
        return kind.fields
    if isinstance(kind, ListType):
        return (kind.element_field,)
    return kind.key_field, kind.value_field
