"""A Delta table on a local disk: its log is looked at, and added to on the snapshot of that look.

delta-rs refuses a commit whose application id is among those of the commits since its snapshot;
a *fresh* snapshot it never asks. So the witness is read and the commit made on one and the same.
Its log files are not synced by it (object_store writes and links them), which is done here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from airflow_eos.errors import ConfigurationError, Remedy, StoreError
from airflow_eos.participants.delta.history import added_before
from airflow_eos.participants.delta.opening import asked, opened, refuse
from airflow_eos.participants.delta.schema import misfit
from airflow_eos.participants.lake.table import DataFile, LostRaceError

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable


class DeltaLog:
    """See :class:`airflow_eos.participants.lake.table.LakeTable`.

    Args:
        folder: of the table.
        table_id: of its metadata; another one is another table.
    """

    def __init__(self, folder: Path, table_id: str) -> None:
        self.folder = folder
        self.data = folder
        self._table_id = table_id

    @property
    def address(self) -> dict[str, str]:
        """Its folder, and its id."""
        return {"table": str(self.folder), "id": self._table_id}

    def look(self) -> DeltaView:
        """A fresh snapshot."""
        table = opened(self.folder)
        found = str(table.metadata().id)
        if found != self._table_id:
            raise StoreError(
                f"{self.folder} is not the table of this pipeline: its id is {found}, expected "
                f"{self._table_id}. Was it made anew? Nothing was concluded from its log."
            )
        refuse(self.folder, table)
        return DeltaView(self.folder, table)


class DeltaView:
    """See :class:`airflow_eos.participants.lake.table.View`."""

    def __init__(self, folder: Path, table: DeltaTable) -> None:
        self._folder = folder
        self._table = table

    def witness(self, slot: str) -> int | None:
        """The version of the application id ``slot``."""
        with asked(self._folder):
            return self._table.transaction_version(slot)

    def names(self, files: Collection[Path]) -> frozenset[Path]:
        """Those that are rows of this snapshot."""
        with asked(self._folder):
            uris = self._table.file_uris()
        named = {Path(unquote(uri.removeprefix("file://"))).name for uri in uris}
        named |= {Path(uri).name for uri in uris}
        return frozenset(file for file in files if file.name in named)

    def still_names(self, files: Collection[Path]) -> frozenset[Path]:
        """Also those of a version before, by what is left of the log."""
        with asked(self._folder):
            return self.names(files) | added_before(self._folder, files)

    def check(self, files: Sequence[DataFile]) -> None:
        """Compare what the files themselves say of their columns."""
        import pyarrow.parquet as pq
        from deltalake import Schema

        for file in files:
            try:
                written = Schema.from_arrow(pq.read_schema(file.path))
            except FileNotFoundError as error:
                raise LostRaceError(f"{file.path} is gone") from error
            rows = json.loads(written.to_json())
            why = misfit(rows, self._schema)
            if why is not None:
                raise ConfigurationError(
                    f"The table {self._folder} was changed since rows were promised to it: {why}. "
                    "Nothing was dropped, and nothing is visible yet.",
                    Remedy(change="put its columns back as they were", start=True),
                )

    def append(self, files: Sequence[DataFile], slot: str, number: int) -> None:
        """One commit to the log, with the application id ``slot`` at version ``number``."""
        from deltalake import CommitProperties, Transaction

        self._commit(files, CommitProperties(app_transactions=[Transaction(slot, number)]))

    def append_at_once(self, files: Sequence[DataFile]) -> None:
        """Add files without a witness: at least once."""
        self._commit(files, None)

    def make_durable(self) -> None:
        """Sync the log from its newest checkpoint to this version: whoever wrote it may not have.

        A checkpoint was written of commits that were synced, or is newer than this look.
        """
        log = self._folder / "_delta_log"
        newest = self._table.version()
        with asked(self._folder):
            since = _newest_checkpoint(log)
            for version in range(min(since, newest), newest + 1):
                for name in (f"{version:020d}.json", f"{version:020d}.checkpoint.parquet"):
                    _sync(log / name)
            _sync(log / "_last_checkpoint")
            _sync(log)

    def _commit(self, files: Sequence[DataFile], properties: CommitProperties | None) -> None:
        from deltalake.exceptions import DeltaError
        from deltalake.transaction import AddAction

        adds = [
            AddAction(
                path=quote(file.path.name),
                size=file.size,
                partition_values={},
                modification_time=file.modified_at_ms,
                data_change=True,
                stats=json.dumps({"numRecords": file.rows}),
            )
            for file in files
        ]
        try:
            self._table.create_write_transaction(
                list(adds), "append", self._table.schema(), commit_properties=properties
            )
        except (DeltaError, OSError) as error:
            raise LostRaceError(f"{type(error).__name__}: {error}") from error

    @cached_property
    def _schema(self) -> Any:
        return json.loads(self._table.schema().to_json())


def publish(folder: Path, file: DataFile) -> None:
    """Make one file visible now, whatever else is written meanwhile: at least once.

    Raises:
        StoreError: the table does not take it.
    """
    table = opened(folder)
    refuse(folder, table)
    try:
        DeltaView(folder, table).append_at_once([file])
    except LostRaceError as error:
        raise StoreError(f"{folder} does not take {file.path.name}: {error}") from error


def _newest_checkpoint(log: Path) -> int:
    try:
        found = json.loads((log / "_last_checkpoint").read_bytes())
        return int(found["version"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return 0


def _sync(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
