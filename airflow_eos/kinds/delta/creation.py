"""A Delta table is made where there is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from airflow_eos.errors import ConfigurationError, StoreError

if TYPE_CHECKING:
    from airflow_eos.kinds.lake.new_table import NewTable


def create(location: str, options: Mapping[str, str] | None, new: NewTable) -> None:
    """Make the table if it is not there; one that is there stays as it is.

    Raises:
        ConfigurationError: it cannot be made so.
        StoreError: it was not made.
    """
    from deltalake import DeltaTable, Schema
    from deltalake.exceptions import DeltaError
    from pyspark.sql.types import StructType

    columns = cast("StructType", StructType.fromDDL(new.columns))
    unknown = [name for name in new.partition_by if name not in columns.fieldNames()]
    if unknown:
        raise ConfigurationError(
            f"partition_by {', '.join(unknown)}: expected columns of {new.columns}. A Delta table "
            "is partitioned by columns alone: add one to the rows, such as to_date(at) AS day."
        )
    try:
        DeltaTable.create(
            location,
            Schema.from_json(columns.json()),
            mode="ignore",
            partition_by=list(new.partition_by),
            configuration=dict(new.properties),
            storage_options=dict(options or {}) or None,
        )
    except (DeltaError, OSError, ValueError) as error:
        if DeltaTable.is_deltatable(location, dict(options or {}) or None):
            return  # another process was first
        raise StoreError(
            f"The Delta table was not made of columns {new.columns}, partitions "
            f"{', '.join(new.partition_by) or 'none'} and properties {new.properties}: {error}. "
            "Make it by hand, or change them; then start again."
        ) from error
