"""Where the driver is, as its heartbeat tells whoever has to end it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas import types
from pyspark.sql.types import StructType

from airflow_eos.delivery.spark_session import namespace
from airflow_eos.delivery.task import in_arrow


def session(master: str, **conf: str) -> Any:
    settings = {name.replace("_", "."): value for name, value in conf.items()}
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master), conf=settings)


@pytest.mark.parametrize(
    ("spark", "found"),
    [
        (session("k8s://https://api", spark_kubernetes_namespace="streams"), "streams"),
        (session("k8s://https://api"), "default"),
        (session("yarn", spark_kubernetes_namespace="streams"), ""),
    ],
    ids=["said", "Spark's own default", "no pod"],
)
def test_a_driver_says_in_which_namespace_its_pod_is(spark, found):
    assert namespace(spark) == found


# --- test_columns ---------------------------------------------------------------------------------
# Columns as Arrow has them, by whichever Spark is there.


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
