"""What runs inside Spark: sinks, and the query that drives the protocol.

Read ``query.py`` first (a batch on the driver), then ``task.py`` (its tasks).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_eos.participants.upsert.hbase import HBaseUpsert
    from airflow_eos.participants.upsert.mysql import MySqlUpsert
    from airflow_eos.participants.upsert.postgres import PostgresUpsert
    from airflow_eos.participants.upsert.redis import RedisUpsert
    from airflow_eos.sinks.consumer_group import ConsumerGroup
    from airflow_eos.sinks.delta import DeltaSink
    from airflow_eos.sinks.files import FileSink
    from airflow_eos.sinks.iceberg import IcebergSink
    from airflow_eos.sinks.kafka.sink import KafkaSink
    from airflow_eos.sinks.mysql.sink import MySqlSink
    from airflow_eos.sinks.outputs import Output
    from airflow_eos.sinks.policy import CheckpointPolicy
    from airflow_eos.sinks.postgres.sink import PostgresSink
    from airflow_eos.sinks.restarts import ExponentialDelay, FailureRate, FixedDelay
    from airflow_eos.sinks.start import start_exactly_once
    from airflow_eos.sinks.start_position import StartPosition
    from airflow_eos.sinks.upsert import UpsertSink
    from airflow_eos.sinks.wal import WriteAheadSink

__all__ = [
    "CheckpointPolicy",
    "ConsumerGroup",
    "DeltaSink",
    "ExponentialDelay",
    "FailureRate",
    "FileSink",
    "FixedDelay",
    "HBaseUpsert",
    "IcebergSink",
    "KafkaSink",
    "MySqlSink",
    "MySqlUpsert",
    "Output",
    "PostgresSink",
    "PostgresUpsert",
    "RedisUpsert",
    "StartPosition",
    "UpsertSink",
    "WriteAheadSink",
    "start_exactly_once",
]

_HOMES = {
    "CheckpointPolicy": "sinks.policy",
    "ConsumerGroup": "sinks.consumer_group",
    "DeltaSink": "sinks.delta",
    "ExponentialDelay": "sinks.restarts",
    "FailureRate": "sinks.restarts",
    "FileSink": "sinks.files",
    "HBaseUpsert": "participants.upsert.hbase",
    "FixedDelay": "sinks.restarts",
    "IcebergSink": "sinks.iceberg",
    "KafkaSink": "sinks.kafka.sink",
    "MySqlSink": "sinks.mysql.sink",
    "MySqlUpsert": "participants.upsert.mysql",
    "Output": "sinks.outputs",
    "PostgresSink": "sinks.postgres.sink",
    "PostgresUpsert": "participants.upsert.postgres",
    "RedisUpsert": "participants.upsert.redis",
    "StartPosition": "sinks.start_position",
    "UpsertSink": "sinks.upsert",
    "WriteAheadSink": "sinks.wal",
    "start_exactly_once": "sinks.start",
}


def __getattr__(name: str) -> Any:
    """Import on first use: an executor needs the tasks' module only, not the driver's."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"airflow_eos.{_HOMES[name]}"), name)
