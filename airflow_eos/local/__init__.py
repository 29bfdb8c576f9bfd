"""What the demo and the tests need on one machine: jars and an embedded Kafka broker."""

from __future__ import annotations

from airflow_eos.local.broker import AT_FULL_SPEED, EmbeddedKafka
from airflow_eos.local.jars import avro_jars, broker_jars, spark_jars

__all__ = ["AT_FULL_SPEED", "EmbeddedKafka", "avro_jars", "broker_jars", "spark_jars"]
