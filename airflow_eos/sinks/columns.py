"""Columns as Spark SQL, under the names that they have, whatever is in a name."""

from __future__ import annotations

from collections.abc import Iterable


def quoted(name: str, row: str = "") -> str:
    """The column of ``row``, which stands before it: ``""``, or ``"`orders`."`` inside a struct."""
    escaped = name.replace("`", "``")
    return f"{row}`{escaped}`"


def selected(names: Iterable[str], row: str = "") -> list[str]:
    """Each column of ``row`` as it is: ``expression AS `name```."""
    return [f"{quoted(name, row)} AS {quoted(name)}" for name in names]
