"""The columns that an upsert asks of its rows: a key, and maybe one that tells of deletes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_eos.errors import ConfigurationError


def require_key_columns(
    columns: Mapping[str, str], key: Sequence[str], deleted: str | None
) -> None:
    """Refuse rows without the columns of an upsert.

    Args:
        columns: of the rows: names, and Spark's types.
        key: names of the columns that name a row.
        deleted: name of the column that is true where the row of that key is to go.

    Raises:
        ConfigurationError: a column is lacking, or ``deleted`` is no boolean.
    """
    lacking = [name for name in (*key, deleted) if name and name not in columns]
    if lacking:
        raise ConfigurationError(
            f"The rows have no column {', '.join(lacking)}: they have {', '.join(columns)}."
        )
    if deleted is not None and columns[deleted] != "boolean":
        raise ConfigurationError(
            f"Column {deleted} tells of deletes and is {columns[deleted]}: expected boolean."
        )
