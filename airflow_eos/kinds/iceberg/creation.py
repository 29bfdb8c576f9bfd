"""An Iceberg table that is not there is made by the first start of its pipeline."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from airflow_eos.core.delivery.task import in_arrow
from airflow_eos.errors import ConfigurationError, StoreError
from airflow_eos.kinds.lake.new_table import NewTable

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.transforms import Transform

_PART = re.compile(r"(?P<how>[a-z]+)\((?:(?P<width>[0-9]+) *, *)?(?P<column>[^(),]+)\)")


def part(text: str) -> tuple[str, Transform[Any, Any]]:
    """Return the column and the transform of one entry of ``partition_by``.

    Raises:
        ConfigurationError: there is no such transform.
    """
    from pyiceberg.exceptions import ValidationError
    from pyiceberg.transforms import IdentityTransform, UnknownTransform, parse_transform

    found = _PART.fullmatch(text.strip())
    if found is None:
        return text.strip(), IdentityTransform()
    how = found["how"] if found["how"].startswith("bucket") else found["how"].removesuffix("s")
    try:
        made = parse_transform(how if found["width"] is None else f"{how}[{found['width']}]")
    except (ValueError, ValidationError):
        made = UnknownTransform(text)
    if isinstance(made, UnknownTransform):
        raise ConfigurationError(
            f"partition_by {text!r}: expected a column, or year, month, day, hour, bucket(n, …) or "
            "truncate(n, …) of one."
        )
    return found["column"].strip(), made


def create(catalog: Catalog, identifier: str, new: NewTable) -> None:
    """Make the table if it is not there; one that is there stays as it is.

    Raises:
        ConfigurationError: its columns or partitions cannot be made.
        StoreError: the catalog did not make it.
    """
    from pyiceberg.exceptions import (
        CommitFailedException,
        TableAlreadyExistsError,
        ValidationError,
    )
    from pyspark.sql.types import StructType

    parts = [part(text) for text in new.partition_by]
    columns = in_arrow(cast("StructType", StructType.fromDDL(new.columns)))
    try:
        if catalog.table_exists(identifier):
            return
        namespace = identifier.split(".")[:-1]
        for depth in range(1, len(namespace) + 1):
            catalog.create_namespace_if_not_exists(tuple(namespace[:depth]))
        with (
            catalog.create_table_transaction(
                identifier, columns, properties=dict(new.properties)
            ) as table,
            table.update_spec() as spec,
        ):
            for column, how in parts:
                spec.add_field(column, how)
    except (CommitFailedException, TableAlreadyExistsError):
        return  # another process was first, or the next look does not find it
    except (ValueError, ValidationError) as error:
        raise ConfigurationError(
            f"The Iceberg table {identifier} cannot be made of columns {new.columns} and "
            f"partitions {', '.join(new.partition_by) or 'none'}: {error}"
        ) from error
    except Exception as error:
        raise StoreError(
            f"The Iceberg table {identifier} was not made: {type(error).__name__}. Make it by "
            "hand, or look whether this catalog may be written; then start again."
        ) from error
