"""What the snapshots of an Iceberg table still tell: a second witness, and files of former rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table


def summaries(table: Table, key: str) -> Iterator[str]:
    """What each snapshot that has not expired says under ``key``."""
    for snapshot in table.metadata.snapshots:
        found = snapshot.summary[key] if snapshot.summary is not None else None
        if found is not None:
            yield str(found)


def named(table: Table, files: Collection[Path]) -> set[Path]:
    """Those that any snapshot names: readers can go back to it, or the table be put back.

    All are asked: when a file was written and when a snapshot was, two machines may have said. A
    file that is not there any more is not among them: nobody can take it away.
    """
    by_name = {file.name: file for file in files if file.exists()}
    found: set[Path] = set()
    for manifest in _manifests(table) if by_name else ():
        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        names = {Path(entry.data_file.file_path).name for entry in entries}
        found |= {by_name[name] for name in names & by_name.keys()}
    return found


def _manifests(table: Table) -> Iterator[ManifestFile]:
    """Of all snapshots, each once: most are shared."""
    seen: set[str] = set()
    for snapshot in table.metadata.snapshots:
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                yield manifest
