"""Where the driver is, as its heartbeat tells whoever has to end it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_eos.delivery.spark_session import namespace

pytestmark = pytest.mark.unit


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
