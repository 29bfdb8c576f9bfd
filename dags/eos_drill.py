"""A DAG that practises every week: a scratch pipeline is killed; how long recovery took is said.

It has a checkpoint, a prefix and topics of its own (docs/people.md). Settings are those of
``airflow_eos.factory.eos_drill``; what differs with you goes into the Airflow variable
``eos_drill`` as JSON, for example ``{"checkpoint": "/mnt/lake/eos-drill", "limit_s": 60}``.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Variable

from airflow_eos import factory

DEFAULTS: dict[str, Any] = {
    "checkpoint": "/data/checkpoints/eos-drill",
    "packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "limit_s": 120,
}
# Read while the file is parsed; a misspelt name in it is an import error that names it.
HERE = Variable.get("eos_drill", default={}, deserialize_json=True)

eos_drill = factory.eos_drill(**(DEFAULTS | HERE))
