"""A Spark app tells how far it has come back, for the parts of a recovery time."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from pyspark.core import context
from pyspark.sql import SparkSession

from airflow_eos.sinks import start
from airflow_eos.sinks.query import ExactlyOnceBatch
from tests.chaos.journal import Journal


def tell(journal_file: str, name: str) -> None:
    """From now on every step of ``play.MARKS`` is noted when it is done."""
    journal = Journal(Path(journal_file), name)
    journal.note("main")
    _noting(journal, context, "launch_gateway", after="jvm-up")
    _noting(journal, SparkSession.Builder, "getOrCreate", after="spark-up")
    _noting(journal, start, "gather", before="recovering")
    _noting(journal, start, "execute", after="taken-over")
    _noting(journal, ExactlyOnceBatch, "__call__", before="called")
    _noting(journal, ExactlyOnceBatch, "_look", after="looked")
    _noting(journal, ExactlyOnceBatch, "_fulfil", after="kept")


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
