"""Which columns fit an Iceberg table, both sides as Arrow has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
        if name in ours and _is_looser(ours[name].type, field.type):
            return f"column {name} may be null within, where the table says it is required"
    return None


def _is_looser(ours: pa.DataType, theirs: pa.DataType) -> bool:
    """Whether something within may be null, and not in the table, of types that are alike."""
    return any(
        (mine.nullable and not other.nullable) or _is_looser(mine.type, other.type)
        for mine, other in zip(_within(ours), _within(theirs), strict=True)
    )


def _within(kind: pa.DataType) -> list[pa.Field]:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return [kind.field(at) for at in range(kind.num_fields)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [kind.value_field]
    return []


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
