"""Jars and an embedded Kafka broker, for the demo and the tests on one machine."""

from __future__ import annotations

from airflow_eos.local.broker import AT_FULL_SPEED, EmbeddedKafka
from airflow_eos.local.jars import avro_jars, broker_jars, spark_jars

__all__ = ["AT_FULL_SPEED", "EmbeddedKafka", "avro_jars", "broker_jars", "spark_jars"]
