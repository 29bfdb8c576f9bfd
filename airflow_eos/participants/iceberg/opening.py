"""Open an Iceberg table, and refuse what we cannot write."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos.checkpoint.locations import as_local_path
from airflow_eos.errors import ConfigurationError, Remedy, StoreError
from airflow_eos.participants.iceberg.schema import misfit, with_ids

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table


def opened(catalog: Catalog, identifier: str) -> Table:
    """The table as it is now.

    Raises:
        StoreError: it is not there, or cannot be read.
    """
    with asked(identifier):
        return catalog.load_table(identifier)


def location(identifier: str, table: Table) -> Path:
    """The folder of the table.

    Raises:
        ConfigurationError: it is not on a disk.
    """
    found = table.location()
    folder = as_local_path(found)
    if folder is None:
        raise ConfigurationError(
            f"The Iceberg table {identifier} is at {found.partition('?')[0]}: expected a path on a "
            "disk, the same for the driver and all executors. Object stores are not supported."
        )
    return folder


def refuse(identifier: str, table: Table) -> None:
    """Refuse what we, or the library, cannot write (ConfigurationError)."""
    from pyiceberg.table.metadata import SUPPORTED_TABLE_FORMAT_VERSION

    if table.format_version > SUPPORTED_TABLE_FORMAT_VERSION:
        # It is read all the same: only the commit of what was decided would fail, each time.
        raise ConfigurationError(
            f"The Iceberg table {identifier} has format version {table.format_version}, and this "
            f"pyiceberg writes {SUPPORTED_TABLE_FORMAT_VERSION} at most: take one that can, or "
            "deliver into another table. Nothing was dropped."
        )
    if not table.spec().is_unpartitioned():
        raise ConfigurationError(
            f"The Iceberg table {identifier} is partitioned ({table.spec()}). This sink writes "
            "tables without partitions: deliver into another one. Nothing was dropped."
        )


def require_fit(catalog: Catalog, identifier: str, rows: Any, bound: Any = None) -> None:
    """Refuse rows that are not of the table's columns, before they are promised.

    Args:
        catalog: reached already.
        identifier: of the table.
        rows: an Arrow schema.
        bound: the table's, by whose ids tasks write.

    Raises:
        ConfigurationError: other columns or types.
        StoreError: the table's columns of these names are not those of ``bound`` any more.
    """
    table = opened(catalog, identifier).schema().as_arrow()
    why = misfit(rows, table)
    if why is not None:
        raise ConfigurationError(
            f"Rows cannot be appended to the Iceberg table {identifier}: {why}. Select and cast "
            "the columns that the table has."
        )
    if bound is not None and not (
        misfit(rows, bound) is None
        and with_ids(rows, table).equals(with_ids(rows, bound), check_metadata=True)
    ):
        raise StoreError(
            f"Columns of the Iceberg table {identifier} were made anew since this query started, "
            "and rows are written by the ids of before. Nothing is promised of this batch.",
            Remedy(start=True),
        )


@contextlib.contextmanager
def asked(identifier: str) -> Iterator[None]:
    """What a catalog and the disk raise, as StoreError: no error of theirs is an answer."""
    from pyiceberg.exceptions import NoSuchTableError

    try:
        yield
    except NoSuchTableError as error:
        raise StoreError(
            f"The catalog has no Iceberg table {identifier}. Create it before the pipeline "
            "starts. Nothing was concluded from what is not there."
        ) from error
    except StoreError:
        raise
    except Exception as error:
        raise StoreError(
            f"The Iceberg table {identifier} cannot be read: {type(error).__name__}: "
            f"{brief(error)}. Nothing was guessed; try again."
        ) from error


def brief(error: Exception) -> str:
    """The first line of it."""
    return str(error).strip().partition("\n")[0]
