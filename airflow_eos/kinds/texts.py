"""Texts of rows: Spark makes a string of any bytes, and most readers take UTF-8 alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.errors import DeliveryError

if TYPE_CHECKING:
    import pyarrow as pa


def refuse_texts(rows: pa.RecordBatch, where: str) -> None:
    """Refuse texts that are no UTF-8, also nested ones.

    Most readers refuse a whole column, or file, that holds one.

    Args:
        rows: of a task.
        where: what cannot hold them, for the error.

    Raises:
        DeliveryError: with the column.
    """
    import pyarrow as pa

    flat = (pa.types.is_string, pa.types.is_large_string, pa.types.is_nested)
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if not any(holds_texts(column.type) for holds_texts in flat):
            continue
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            raise DeliveryError(
                f"A text in column {name} is not UTF-8, which {where} cannot hold. Nothing of its "
                "batch was written. Send it as binary, make a text of it (decode), or have what "
                "is none of it replaced (make_valid_utf8)."
            ) from None  # Arrow's error quotes no value, and says less
