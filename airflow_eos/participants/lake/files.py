"""The data files of prepared work, in the folder of a table."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_eos.errors import StoreError
from airflow_eos.participants.lake.notes import checked
from airflow_eos.participants.lake.table import DataFile

if TYPE_CHECKING:
    from airflow_eos.participants.lake.table import LakeTable
    from airflow_eos.protocol.decision import PreparedWork


class PreparedFiles:
    """Those of one table."""

    def __init__(self, table: LakeTable) -> None:
        self._table = table

    def of(self, key: str) -> Path:
        """The file of the work ``key``."""
        return self._table.data / f"{checked(key)}.parquet"

    def whole(self, works: Sequence[PreparedWork]) -> list[DataFile]:
        """The files of ``works``; none where one is missing, or is not as it was promised."""
        files = []
        with self.disk("looking for prepared files"):
            for work in works:
                file = self.of(work.key)
                try:
                    found = file.stat()
                except FileNotFoundError:
                    return []
                if found.st_size != work.detail["bytes"]:
                    return []
                modified_at_ms = found.st_mtime_ns // 1_000_000
                files.append(DataFile(file, found.st_size, work.rows, modified_at_ms))
        return files

    @contextlib.contextmanager
    def disk(self, doing: str) -> Iterator[None]:
        """An error of the disk is no answer (StoreError)."""
        try:
            yield
        except OSError as error:
            raise StoreError(
                f"The disk refused while {doing} of {self._table.folder}: {error}. Driver, tasks "
                "and recovery must be one user that may write there. Nothing was guessed; try "
                "again."
            ) from error


def is_there(file: Path) -> bool:
    """Unlike ``Path.exists``, an error is no answer."""
    try:
        file.stat()
    except FileNotFoundError:
        return False
    return True
