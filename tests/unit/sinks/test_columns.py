"""Columns as Arrow has them, by whichever Spark is there."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.pandas import types
from pyspark.sql.types import StructType

from airflow_eos.delivery.task import in_arrow

pytestmark = pytest.mark.unit


def test_instants_are_in_utc_in_any_spark(monkeypatch):
    """Spark 4.0 and 4.1 refuse the word that 4.2 asks for."""
    schema = StructType().add("at", "timestamp")
    wanted = pa.schema([("at", pa.timestamp("us", "UTC"))])
    assert in_arrow(schema) == wanted

    def before(_schema: StructType, *, timestamp_utc: bool = True) -> pa.Schema:
        assert timestamp_utc
        return wanted

    monkeypatch.setattr(types, "to_arrow_schema", before)
    assert in_arrow(schema) == wanted
