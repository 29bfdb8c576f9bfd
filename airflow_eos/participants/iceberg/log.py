"""An Iceberg table on a local disk: its snapshots are looked at, and one is added on top of them.

A commit asserts the snapshot that was looked at, or that there is none; whoever adds one between
makes it fail. The library would then try again on the newer snapshot, without a look at the
witness, and two of us would both add the same files: its retries are off.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos.checkpoint.locations import as_local_path
from airflow_eos.errors import ConfigurationError, StoreError
from airflow_eos.participants.iceberg.schema import misfit
from airflow_eos.participants.lake.table import DataFile, LostRaceError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

_SLOT = "eos."
_RETRIES = "commit.retry.num-retries"
_SYNCED_AT_MOST = 100


class IcebergLog:
    """See :class:`airflow_eos.participants.lake.table.LakeTable`.

    Args:
        catalog: reached already.
        identifier: ``namespace.table``.
        table_id: the table's uuid; another one is another table.
        folder: its location.
    """

    def __init__(self, catalog: Catalog, identifier: str, table_id: str, folder: Path) -> None:
        self._catalog = catalog
        self._identifier = identifier
        self._table_id = table_id
        self.folder = folder
        self.data = folder / "data"

    @property
    def address(self) -> dict[str, str]:
        """Its name in its catalog, its id, and where it is."""
        return {
            "catalog": self._catalog.name,
            "table": self._identifier,
            "id": self._table_id,
            "location": str(self.folder),
        }

    def look(self) -> IcebergView:
        """The table as the catalog has it now."""
        table = opened(self._catalog, self._identifier)
        found = str(table.metadata.table_uuid)
        if found != self._table_id:
            raise StoreError(
                f"{self._identifier} is not the table of this pipeline: its id is {found}, "
                f"expected {self._table_id}. Was it made anew? Nothing was concluded from it."
            )
        if not self.folder.is_dir():
            raise StoreError(
                f"{self.folder} is not there. Is the disk mounted here? Nothing was concluded "
                "from what is not there."
            )
        refuse(self._identifier, table)
        return IcebergView(self._identifier, table)


class IcebergView:
    """See :class:`airflow_eos.participants.lake.table.View`."""

    def __init__(self, identifier: str, table: Table) -> None:
        self._identifier = identifier
        self._table = table

    def witness(self, slot: str) -> int | None:
        """The property of the table: it outlives the snapshot that it came with."""
        found = self._table.metadata.properties.get(_SLOT + slot)
        if found is None:
            return None
        if not found.isdecimal():
            raise StoreError(
                f"{self._identifier}: the property {_SLOT + slot} is {found!r}, expected a "
                "number. Who changed it? Put it back; nothing was concluded from it."
            )
        return int(found)

    def names(self, files: Collection[Path]) -> frozenset[Path]:
        """Those that are rows of the current snapshot."""
        with asked(self._identifier):
            planned = {Path(task.file.file_path).name for task in self._table.scan().plan_files()}
        return frozenset(file for file in files if file.name in planned)

    def check(self, files: Sequence[DataFile]) -> None:
        """Compare what the files themselves say of their columns."""
        import pyarrow.parquet as pq

        for file in files:
            try:
                rows = pq.read_schema(file.path)
            except FileNotFoundError as error:
                raise LostRaceError(f"{file.path} is gone") from error
            why = misfit(rows, self._table.schema().as_arrow())
            if why is not None:
                raise ConfigurationError(
                    f"The table {self._identifier} was changed since rows were promised to it: "
                    f"{why}. Nothing was dropped, and nothing is visible yet. Put its columns "
                    "back as they were, then start again or run recovery."
                )

    def append(self, files: Sequence[DataFile], slot: str, number: int) -> None:
        """One snapshot, empty where there are no files, with the property beside it."""
        witness = {_SLOT + slot: str(number)}
        self._commit(files, witness, properties=witness)

    def append_at_once(self, files: Sequence[DataFile]) -> None:
        """Add files without a witness: at least once."""
        self._commit(files, {}, properties={})

    def make_durable(self) -> None:
        """Sync the metadata and the newest manifests: the library does not."""
        with asked(self._identifier):
            snapshot = self._table.current_snapshot()
            if snapshot is not None:
                manifests = snapshot.manifests(self._table.io)
                newest = sorted(manifests, key=lambda each: each.sequence_number, reverse=True)
                for manifest in newest[:_SYNCED_AT_MOST]:
                    _sync(manifest.manifest_path)
                _sync(snapshot.manifest_list)
            _sync(self._table.metadata_location)
            _sync(str(Path(self._table.metadata_location).parent))

    def _commit(
        self,
        files: Sequence[DataFile],
        summary: Mapping[str, str],
        *,
        properties: Mapping[str, str],
    ) -> None:
        # This copy of the metadata alone: what is committed are the changes staged below.
        self._table.metadata.properties[_RETRIES] = "0"
        added = [f"file://{file.path}" for file in files]
        try:
            change = self._table.transaction()
            if added:
                change.add_files(added, dict(summary), check_duplicate_files=False)
            else:
                with change.update_snapshot(snapshot_properties=dict(summary)).fast_append():
                    pass
            if properties:
                change.set_properties(dict(properties))
            change.commit_transaction()
        except Exception as error:  # whatever a catalog raises, the next look tells
            raise LostRaceError(f"{type(error).__name__}: {_brief(error)}") from error


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
    """Refuse what we cannot write (ConfigurationError)."""
    if not table.spec().is_unpartitioned():
        raise ConfigurationError(
            f"The Iceberg table {identifier} is partitioned ({table.spec()}). This sink writes "
            "tables without partitions: deliver into another one. Nothing was dropped."
        )


def require_fit(catalog: Catalog, identifier: str, rows: Any) -> None:
    """Refuse rows (an Arrow schema) that are not of the table's columns (ConfigurationError)."""
    why = misfit(rows, opened(catalog, identifier).schema().as_arrow())
    if why is not None:
        raise ConfigurationError(
            f"Rows cannot be appended to the Iceberg table {identifier}: {why}. Select and cast "
            "the columns that the table has."
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
            f"{_brief(error)}. Nothing was guessed; try again."
        ) from error


def _brief(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _sync(uri: str) -> None:
    path = as_local_path(uri)
    if path is None:
        return
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # cleaned meanwhile: a newer one stands for it
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
