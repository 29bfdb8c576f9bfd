"""Which columns fit an Iceberg table, both sides as Arrow has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.participants.lake.nullability import is_looser

if TYPE_CHECKING:
    import pyarrow as pa


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
