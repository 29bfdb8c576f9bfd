"""What Spark's progress of a batch says of the query's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_eos.checkpoint.progress import StateSize

_FILES = "rocksdbSstFileSize"


def state_size(progress: Mapping[str, Any] | None) -> StateSize | None:
    """Of ``lastProgress``; None where no batch has ended yet, or the query keeps no state.

    Args:
        progress: with the names of Spark's JSON (``StreamingQueryProgress``).
    """
    operators = progress["stateOperators"] if progress is not None else []
    if progress is None or not operators:
        return None

    def total(name: str) -> int:
        return sum(int(operator[name]) for operator in operators)

    files = [operator["customMetrics"].get(_FILES) for operator in operators]
    return StateSize(
        batch_id=int(progress["batchId"]),
        rows=total("numRowsTotal"),
        memory_bytes=total("memoryUsedBytes"),
        file_bytes=None if None in files else sum(files),
        tasks=total("numStateStoreInstances"),
        update_ms=total("allUpdatesTimeMs") + total("allRemovalsTimeMs"),
        commit_ms=total("commitTimeMs"),
        batch_ms=int(progress["durationMs"]["triggerExecution"]),
    )
