"""A weekly drill: a DAG kills a scratch pipeline, and reports how long its recovery took.

The scratch pipeline has a checkpoint, a prefix and topics of its own (docs/people.md). Change the
settings of ``airflow_eos.factory.eos_drill`` here.
"""

from __future__ import annotations

from airflow_eos import factory

eos_drill = factory.eos_drill(
    checkpoint="/data/checkpoints/eos-drill",
    packages="org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    limit="2 minutes",
)
