"""Texts as readers of files need them: Spark makes a string of any bytes, Parquet's are UTF-8.

One text that is none makes a whole table unreadable: DuckDB, Polars, delta-rs and pyiceberg refuse
its column from then on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.errors import DeliveryError, Remedy

if TYPE_CHECKING:
    import pyarrow as pa


def require_utf8(rows: pa.RecordBatch) -> None:
    """Refuse rows with a text that is no UTF-8, at any depth of a column; it is not quoted.

    Arrow looks at the bytes, at some gigabytes a second.

    Raises:
        DeliveryError: with the column, and how the query can mend it.
    """
    import pyarrow as pa

    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if not _has_text(column.type):
            continue
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise DeliveryError(
                f"Column {name!r} has a text that is no UTF-8, which readers of files and tables "
                "refuse, and with it the whole column. Expected texts in UTF-8; bytes of another "
                "encoding belong into a binary column. Nothing of the batch is promised.",
                Remedy(
                    change=f"in the query select make_valid_utf8({name}) to replace such bytes, or "
                    f"decode the bytes by their own charset: decode({name}, 'ISO-8859-1')",
                    start=True,
                ),
            ) from error


def _has_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    if pa.types.is_nested(kind):
        return any(_has_text(kind.field(at).type) for at in range(kind.num_fields))
    if pa.types.is_dictionary(kind):
        return _has_text(kind.value_type)
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )
