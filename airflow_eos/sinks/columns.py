"""Columns as Spark SQL, under the names that they have, whatever is in a name."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import signature
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def quoted(name: str, row: str = "") -> str:
    """The column of ``row``, which stands before it: ``""``, or ``"`orders`."`` inside a struct."""
    escaped = name.replace("`", "``")
    return f"{row}`{escaped}`"


def selected(names: Iterable[str], row: str = "") -> list[str]:
    """Each column of ``row`` as it is: ``expression AS `name```."""
    return [f"{quoted(name, row)} AS {quoted(name)}" for name in names]


def in_arrow(schema: StructType) -> pa.Schema:
    """The columns as Arrow has them; instants are in UTC.

    Spark 4.2 wants to be told so, and has no word for it where it is not; 4.0 and 4.1 know it.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    is_asked = "timezone" in signature(to_arrow_schema).parameters
    options: dict[str, Any] = {"timezone": "UTC"} if is_asked else {}
    return to_arrow_schema(schema, **options)
