"""Open a Delta table, and refuse what this release cannot write exactly once."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_eos.errors import ConfigurationError, StoreError
from airflow_eos.participants.delta.features import unwritable
from airflow_eos.participants.delta.schema import computed, misfit

if TYPE_CHECKING:
    from deltalake import DeltaTable

_REFUSED = {
    "delta.constraints.": "constraints, which every writer has to check",
    "delta.setTransactionRetentionDuration": "a retention of application versions: it would "
    "forget what was committed",
}
_REFUSED_UNLESS = {
    "delta.columnMapping.mode": "none",
    "delta.enableRowTracking": "false",
    "delta.enableIcebergCompatV1": "false",
    "delta.enableIcebergCompatV2": "false",
}


def opened(folder: Path) -> DeltaTable:
    """The table as it is now.

    Raises:
        StoreError: it is not there, or cannot be read.
    """
    with asked(folder):
        from deltalake import DeltaTable

        return DeltaTable(folder)


def refuse(folder: Path, table: DeltaTable) -> None:
    """Refuse what we cannot write, and what forgets what was committed.

    Raises:
        ConfigurationError: which property, column or feature it is.
        StoreError: the library cannot be tried.
    """
    metadata = table.metadata()
    trouble = [
        f"{key} ({why})"
        for key in metadata.configuration
        for prefix, why in _REFUSED.items()
        if key.startswith(prefix)
    ]
    for key, allowed in _REFUSED_UNLESS.items():
        found = metadata.configuration.get(key, allowed)
        if found.lower() != allowed:
            trouble.append(f"{key} = {found}")
    trouble += [f"partitions by {name}" for name in metadata.partition_columns]
    columns = computed(json.loads(table.schema().to_json()))
    trouble += [f"the column {name}, which its writer has to compute or check" for name in columns]
    with asked(folder):
        why = unwritable(table)
    if why is not None:
        trouble.append(f"what deltalake cannot write ({why})")
    if trouble:
        raise ConfigurationError(
            f"The Delta table {folder} has {'; '.join(trouble)}. This sink writes plain tables: "
            "take it away, or deliver into another table. Nothing was dropped."
        )


def require_fit(folder: Path, rows: str) -> None:
    """Refuse rows that are not of the table's columns as it is now, before they are promised.

    Args:
        folder: of the table.
        rows: their schema, in Spark's JSON.

    Raises:
        ConfigurationError: which column, and why.
        StoreError: there is no table, or it cannot be read.
    """
    table = _as_it_is(folder)
    refuse(folder, table)
    why = misfit(json.loads(rows), json.loads(table.schema().to_json()))
    if why is not None:
        raise ConfigurationError(
            f"Rows cannot be appended to the Delta table {folder}: {why}. Select and cast the "
            "columns that the table has."
        )


def _as_it_is(folder: Path) -> DeltaTable:
    """Of a table that was opened before, what is new of its log: each batch asks."""
    table = _opened_once(folder)
    try:
        table.update_incremental()
    except Exception:  # noqa: BLE001 - its log is another one, or cannot be read: opening tells
        _opened_once.cache_clear()
        table = _opened_once(folder)
    return table


@lru_cache(maxsize=64)
def _opened_once(folder: Path) -> DeltaTable:
    return opened(folder)


@contextlib.contextmanager
def asked(folder: Path) -> Iterator[None]:
    """What delta-rs and the disk raise, as StoreError."""
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        yield
    except TableNotFoundError as error:
        raise StoreError(
            f"{folder} holds no Delta table. Is the disk mounted here? Create the table before "
            "the pipeline starts. Nothing was concluded from what is not there."
        ) from error
    except (DeltaError, OSError) as error:
        raise StoreError(
            f"The Delta table {folder} cannot be read: {error}. Nothing was guessed; try again."
        ) from error
