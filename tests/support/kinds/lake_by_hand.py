"""Delta and Iceberg read as their specifications say, without the library that wrote them.

Of the log only what these tables have: files that were added and taken away again. What is in a
file is read by pyarrow, which wrote it; Spark's own reader looks at such files where it replays.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

_DELETED = 2  # status of a manifest's entry


def delta_rows(folder: Path) -> pa.Table:
    """The rows of the newest version: https://github.com/delta-io/delta/blob/master/PROTOCOL.md."""
    files: dict[str, None] = {}
    for commit in sorted((folder / "_delta_log").glob("*.json")):
        for line in commit.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                files[action["add"]["path"]] = None
            elif "remove" in action:
                files.pop(action["remove"]["path"], None)
    return _rows(folder / unquote(path) for path in files)


def iceberg_rows(catalog: Path, table: str) -> pa.Table:
    """The rows of the current snapshot: https://iceberg.apache.org/spec.

    Args:
        catalog: the database of an SQL catalog.
        table: without its namespace.
    """
    with closing(sqlite3.connect(catalog)) as connection:
        asked = "SELECT metadata_location FROM iceberg_tables WHERE table_name = ?"
        (location,) = connection.execute(asked, [table]).fetchone()
    metadata = json.loads(_path(location).read_bytes())
    current = metadata.get("current-snapshot-id")
    lists = [s["manifest-list"] for s in metadata["snapshots"] if s["snapshot-id"] == current]
    entries = (
        entry
        for manifests in lists
        for manifest in _avro(manifests)
        for entry in _avro(manifest["manifest_path"])
    )
    return _rows(
        _path(entry["data_file"]["file_path"]) for entry in entries if entry["status"] != _DELETED
    )


def _rows(files: Iterable[Path]) -> pa.Table:
    tables = [pq.read_table(file, partitioning=None) for file in files]  # folders tell nothing
    return pa.concat_tables(tables) if tables else pa.table({"key": [], "value": []})


def _avro(location: str) -> list[Any]:
    with _path(location).open("rb") as stream:
        return list(fastavro.reader(stream))


S3 = "EOS_TESTS_LAKE_S3"
"""The variable that names a server to children, too: its folder of objects, bucket, options."""


def _path(location: str) -> Path:
    """The file behind a URI: a server of the tests keeps its objects as files."""
    if location.startswith("s3://"):
        server = json.loads(os.environ[S3])
        return Path(server["data"], location.removeprefix(server["url"]).lstrip("/"))
    return Path(location.removeprefix("file://"))
