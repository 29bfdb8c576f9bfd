"""An Iceberg table on a local disk: its snapshots are looked at, and one is added on top of them.

A commit asserts the snapshot that was looked at, or that there is none; whoever adds one between
makes it fail. The library would then try again on the newer snapshot, without a look at the
witness, and two of us would both add the same files: its retries are off.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_eos.checkpoint.locations import as_local_path
from airflow_eos.errors import ConfigurationError, Remedy, StoreError
from airflow_eos.participants.iceberg.opening import asked, brief, opened, refuse
from airflow_eos.participants.iceberg.schema import drifted
from airflow_eos.participants.iceberg.snapshots import named, summaries
from airflow_eos.participants.lake.table import DataFile, LostRaceError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

_SLOT = "eos."
_RETRIES = "commit.retry.num-retries"
_MERGES = "commit.manifest-merge.enabled"
_METRICS = "write.metadata.metrics."
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
        """The property of the table: it outlives the snapshot that it came with.

        Where somebody has unset it or set it back, the summary of that snapshot still says it.
        """
        kept = self._table.metadata.properties.get(_SLOT + slot)
        told = [*summaries(self._table, _SLOT + slot), *([] if kept is None else [kept])]
        for found in told:
            if not found.isdecimal():
                raise StoreError(
                    f"{self._identifier}: the property {_SLOT + slot} is {found!r}, expected a "
                    "number. Who changed it? Put it back; nothing was concluded from it."
                )
        return max(map(int, told), default=None)

    def names(self, files: Collection[Path]) -> frozenset[Path]:
        """Those that are rows of the current snapshot."""
        with asked(self._identifier):
            planned = {Path(task.file.file_path).name for task in self._table.scan().plan_files()}
        return frozenset(file for file in files if file.name in planned)

    def still_names(self, files: Collection[Path]) -> frozenset[Path]:
        """Those of any snapshot that has not expired."""
        with asked(self._identifier):
            return frozenset(named(self._table, files))

    def check(self, files: Sequence[DataFile]) -> None:
        """Compare what the files themselves say of their columns, by their ids."""
        for file in files:
            why = drifted(_columns_of(file), self._table.schema())
            if why is not None:
                raise ConfigurationError(
                    f"The table {self._identifier} was changed since rows were promised to it: "
                    f"{why}. Nothing was dropped, and nothing is visible yet.",
                    Remedy(change="put its columns back as they were", start=True),
                    Remedy(
                        change="where they cannot be put back, rename the column that was made "
                        "again, so that the table has none of that name",
                        start=True,
                        costs="the promised values of that column are not seen",
                    ),
                )

    def append(self, files: Sequence[DataFile], slot: str, number: int) -> None:
        """One snapshot, empty where there are no files, with the property beside it.

        Where the property is not there, as before the first of all, the table itself is asked
        whether it has these rows: snapshots expire, and a property can be unset by hand.
        """
        if _SLOT + slot not in self._table.metadata.properties:
            self._require_new(files, _SLOT + slot, number)
        witness = {_SLOT + slot: str(number)}
        self._commit(files, witness, properties=witness)

    def _require_new(self, files: Sequence[DataFile], key: str, number: int) -> None:
        there = self.names([file.path for file in files])
        if there:
            raise StoreError(
                f"The Iceberg table {self._identifier} has {len(there)} of {len(files)} files that "
                f"are to be added ({min(there).name}), and no property {key} that says so: it was "
                f"unset by hand. Nothing was added twice. Set it to {number}, then try again."
            )

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
        try:
            added = [self._described(file) for file in files]
            change = self._table.transaction()
            update = change.update_snapshot(snapshot_properties=dict(summary))
            merges = self._table.metadata.properties.get(_MERGES, "false").lower() == "true"
            with update.merge_append() if merges else update.fast_append() as snapshot:
                for file in added:
                    snapshot.append_data_file(file)
            if properties:
                change.set_properties(dict(properties))
            change.commit_transaction()
        except LostRaceError:
            raise
        except Exception as error:  # whatever a catalog raises, the next look tells
            raise LostRaceError(f"{type(error).__name__}: {brief(error)}") from error

    def _described(self, file: DataFile) -> IcebergFile:
        """A manifest's words of a file; bounds by the ids that the file has for its columns.

        The library tells the bounds of columns in Python, which holds no year beyond 9999, and
        makes text no reader could decode of one that is at the edge of what is a character: such
        files go without bounds. They are promised; what they help is to skip a file.
        """
        try:
            return _described(file, self._table.metadata, self._table.metadata.properties)
        except (ArithmeticError, ValueError):
            return _described(file, self._table.metadata, {f"{_METRICS}default": "counts"})


def _columns_of(file: DataFile) -> Schema:
    import pyarrow.parquet as pq
    from pyiceberg.io.pyarrow import pyarrow_to_schema

    try:
        return pyarrow_to_schema(pq.read_schema(file.path))
    except FileNotFoundError as error:
        raise LostRaceError(f"{file.path} is gone") from error


def _described(file: DataFile, table: TableMetadata, properties: Mapping[str, str]) -> IcebergFile:
    import pyarrow.parquet as pq
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.manifest import DataFile as Described
    from pyiceberg.manifest import DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    columns = _columns_of(file)
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=pq.read_metadata(file.path),
        stats_columns=compute_statistics_plan(columns, dict(properties)),
        parquet_column_mapping=parquet_path_to_id_mapping(columns),
    )
    return Described.from_args(
        content=DataFileContent.DATA,
        file_path=f"file://{file.path}",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        file_size_in_bytes=file.size,
        sort_order_id=None,
        spec_id=table.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


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
