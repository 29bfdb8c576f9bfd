"""A DAG that practises every week: a scratch pipeline is killed; how long recovery took is said.

It has a checkpoint, a prefix and topics of its own (docs/people.md). Settings are those of
``airflow_eos.factory.eos_drill``: change them here.
"""

from __future__ import annotations

from airflow_eos import factory

eos_drill = factory.eos_drill(
    checkpoint="/data/checkpoints/eos-drill",
    packages="org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    limit="2 minutes",
)
