"""A Spark app tells how far it has come back, for the parts of a recovery time."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from pyspark.core import context
from pyspark.sql import SparkSession

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.delivery import takeover
from airflow_eos.core.delivery.batch import Attempts, ExactlyOnceBatch
from tests.chaos.journal import Journal, keep_what_is_pruned
from tests.chaos.spark_loop import note_logs


def tell(journal_file: str, name: str, store: CheckpointStore) -> None:
    """From now on every step of ``play.MARKS`` is noted when done, and what is pruned is kept."""
    journal = Journal(Path(journal_file), name)
    journal.note("main")
    keep_what_is_pruned(store, journal.file.parent / "kept")
    _note_logs(journal, store)
    _noting(journal, context, "launch_gateway", after="jvm-up")
    _noting(journal, SparkSession.Builder, "getOrCreate", after="spark-up")
    _noting(journal, takeover, "gather", before="recovering")
    _noting(journal, takeover, "execute", after="taken-over")
    _noting(journal, ExactlyOnceBatch, "__call__", before="called")
    _noting(journal, Attempts, "begin", after="looked")
    _noting(journal, ExactlyOnceBatch, "_fulfil", after="kept")


def _note_logs(journal: Journal, store: CheckpointStore) -> None:
    """Write down each batch's entries in Spark's logs before they can be purged."""
    real = ExactlyOnceBatch.__call__

    def noted(self: ExactlyOnceBatch, df: Any, batch_id: int) -> None:
        note_logs(store, journal, since=batch_id - 1)
        real(self, df, batch_id)

    ExactlyOnceBatch.__call__ = noted  # type: ignore[method-assign]


def _noting(journal: Journal, owner: Any, name: str, *, before: str = "", after: str = "") -> None:
    real: Callable[..., Any] = getattr(owner, name)

    @wraps(real)
    def noted(*given: Any, **named: Any) -> Any:
        if before:
            journal.note(before)
        result = real(*given, **named)
        if after:
            journal.note(after)
        return result

    setattr(owner, name, noted)
