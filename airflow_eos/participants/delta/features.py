"""What a Delta table asks of its writers, and whether the library that is here can do it."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltalake import DeltaTable

_LOG = "_delta_log"
_COLUMN = {"name": "a", "type": "long", "nullable": True, "metadata": {}}


def unwritable(table: DeltaTable) -> str | None:
    """What the library says of a commit to a table of this protocol; None: it takes it.

    It opens and reads tables that it cannot write, and says so at the commit: too late, since the
    rows are promised by then.
    """
    found = table.protocol()
    features = (found.reader_features, found.writer_features)
    return _tried(
        found.min_reader_version,
        found.min_writer_version,
        *(None if names is None else tuple(sorted(names)) for names in features),
    )


@lru_cache(maxsize=64)
def _tried(
    reader: int,
    writer: int,
    reader_features: tuple[str, ...] | None,
    writer_features: tuple[str, ...] | None,
) -> str | None:
    """Commit nothing to an empty table of that protocol: no list of ours knows what it can."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    protocol: dict[str, Any] = {"minReaderVersion": reader, "minWriterVersion": writer}
    if reader_features is not None:
        protocol["readerFeatures"] = reader_features
    if writer_features is not None:
        protocol["writerFeatures"] = writer_features
    metadata = {
        "id": "0",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": [_COLUMN]}),
        "partitionColumns": [],
        "configuration": {},
        "createdTime": 0,
    }
    with TemporaryDirectory(prefix="airflow-eos-") as folder:
        first = Path(folder) / _LOG / f"{0:020d}.json"
        first.parent.mkdir()
        first.write_text(
            "\n".join(map(json.dumps, [{"protocol": protocol}, {"metaData": metadata}]))
        )
        try:
            table = DeltaTable(folder)
            table.create_write_transaction([], "append", table.schema())
        except DeltaError as error:
            return str(error).strip().partition("\n")[0]
    return None
