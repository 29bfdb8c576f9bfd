"""Sinks, outputs, policies and ``start_exactly_once``: the names that an app imports.

Read ``core/delivery/batch.py`` first (a batch on the driver), then ``core/delivery/task.py`` (its
tasks).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_eos.core.delivery.outputs import Output as Output
    from airflow_eos.core.delivery.policy import CheckpointPolicy as CheckpointPolicy
    from airflow_eos.core.delivery.policy import ExponentialDelay as ExponentialDelay
    from airflow_eos.core.delivery.policy import FailureRate as FailureRate
    from airflow_eos.core.delivery.policy import FixedDelay as FixedDelay
    from airflow_eos.core.delivery.start import start_exactly_once as start_exactly_once
    from airflow_eos.core.delivery.start_position import StartPosition as StartPosition
    from airflow_eos.kafka.sink import KafkaSink as KafkaSink
    from airflow_eos.kinds.consumer_group.sink import ConsumerGroup as ConsumerGroup
    from airflow_eos.kinds.delta.sink import DeltaSink as DeltaSink
    from airflow_eos.kinds.files.sink import FileSink as FileSink
    from airflow_eos.kinds.iceberg.sink import IcebergSink as IcebergSink
    from airflow_eos.kinds.lake.new_table import NewTable as NewTable
    from airflow_eos.kinds.lake.upsert import LakeUpsert as LakeUpsert
    from airflow_eos.kinds.mysql.sink import MySqlSink as MySqlSink
    from airflow_eos.kinds.postgres.sink import PostgresSink as PostgresSink
    from airflow_eos.kinds.upsert.hbase import HBaseUpsert as HBaseUpsert
    from airflow_eos.kinds.upsert.mysql import MySqlUpsert as MySqlUpsert
    from airflow_eos.kinds.upsert.postgres import PostgresUpsert as PostgresUpsert
    from airflow_eos.kinds.upsert.redis import RedisUpsert as RedisUpsert
    from airflow_eos.kinds.upsert.sink import UpsertSink as UpsertSink
    from airflow_eos.kinds.wal.sink import WriteAheadSink as WriteAheadSink

_HOMES = {
    "CheckpointPolicy": "core.delivery.policy",
    "ConsumerGroup": "kinds.consumer_group.sink",
    "DeltaSink": "kinds.delta.sink",
    "ExponentialDelay": "core.delivery.policy",
    "FailureRate": "core.delivery.policy",
    "FileSink": "kinds.files.sink",
    "HBaseUpsert": "kinds.upsert.hbase",
    "FixedDelay": "core.delivery.policy",
    "IcebergSink": "kinds.iceberg.sink",
    "KafkaSink": "kafka.sink",
    "LakeUpsert": "kinds.lake.upsert",
    "MySqlSink": "kinds.mysql.sink",
    "MySqlUpsert": "kinds.upsert.mysql",
    "NewTable": "kinds.lake.new_table",
    "Output": "core.delivery.outputs",
    "PostgresSink": "kinds.postgres.sink",
    "PostgresUpsert": "kinds.upsert.postgres",
    "RedisUpsert": "kinds.upsert.redis",
    "StartPosition": "core.delivery.start_position",
    "UpsertSink": "kinds.upsert.sink",
    "WriteAheadSink": "kinds.wal.sink",
    "start_exactly_once": "core.delivery.start",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Import on first use: an executor needs the tasks' module only, not the driver's."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"airflow_eos.{_HOMES[name]}"), name)
