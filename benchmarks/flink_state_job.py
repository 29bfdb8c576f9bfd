"""A Flink job that counts by key, Kafka to Kafka, exactly once; runs in Flink's own environment.

The argument is JSON: bootstrap, connector, input, output, prefix, checkpoints and local (folders),
rest (a port), managed (memory that RocksDB may take), tasks. A checkpoint is taken on request.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyflink.table import (  # type: ignore[import-not-found]
    EnvironmentSettings,
    TableEnvironment,
)


def main() -> None:
    """Run the job until it is ended from outside."""
    job: dict[str, Any] = json.loads(sys.argv[1])
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for name, value in _configuration(job).items():
        tables.get_config().set(name, value)
    tables.execute_sql(_table("source", "k BIGINT, v BYTES", _source(job)))
    key = "k BIGINT, v STRING, PRIMARY KEY (k) NOT ENFORCED"
    tables.execute_sql(_table("sink", key, _sink(job)))
    tables.execute_sql(
        "INSERT INTO sink SELECT k, CAST(COUNT(*) AS STRING) FROM source GROUP BY k"
    ).wait()


def _configuration(job: dict[str, Any]) -> dict[str, str]:
    return {
        "pipeline.jars": f"file://{job['connector']}",
        "pipeline.object-reuse": "true",
        "parallelism.default": str(job["tasks"]),
        "state.backend.type": "rocksdb",
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.interval": "1 h",
        "execution.checkpointing.min-pause": "0 ms",
        "execution.checkpointing.dir": f"file://{job['checkpoints']}",
        "taskmanager.memory.managed.size": job["managed"],
        "io.tmp.dirs": job["local"],
        "web.checkpoints.history": "1000",
        "rest.address": "127.0.0.1",
        "rest.bind-address": "127.0.0.1",
        "rest.port": str(job["rest"]),
        "rest.bind-port": str(job["rest"]),
        "jobmanager.rpc.address": "127.0.0.1",
        "taskmanager.host": "127.0.0.1",
        "taskmanager.bind-host": "127.0.0.1",
    }


def _table(name: str, columns: str, options: dict[str, str]) -> str:
    told = ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
    return f"CREATE TABLE {name} ({columns}) WITH ({told})"


def _formats(job: dict[str, Any]) -> dict[str, str]:
    return {
        "properties.bootstrap.servers": job["bootstrap"],
        "key.format": "raw",
        "value.format": "raw",
        "value.fields-include": "EXCEPT_KEY",
    }


def _source(job: dict[str, Any]) -> dict[str, str]:
    return _formats(job) | {
        "connector": "kafka",
        "topic": job["input"],
        "key.fields": "k",
        "scan.startup.mode": "earliest-offset",
        "properties.max.poll.records": "20000",
        "properties.max.partition.fetch.bytes": "8388608",
        "properties.receive.buffer.bytes": "4194304",
    }


def _sink(job: dict[str, Any]) -> dict[str, str]:
    return _formats(job) | {
        "connector": "upsert-kafka",
        "topic": job["output"],
        "sink.delivery-guarantee": "exactly-once",
        "sink.transactional-id-prefix": job["prefix"],
        "properties.transaction.timeout.ms": "600000",
        "properties.compression.type": "lz4",
        "properties.batch.size": "1000000",
        "properties.linger.ms": "20",
    }


if __name__ == "__main__":
    main()
