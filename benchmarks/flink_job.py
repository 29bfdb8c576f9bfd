"""A Flink job, Kafka to Kafka, exactly once; runs in Flink's own environment, see ``flink.py``.

The argument is JSON: bootstrap, connector, input, output, prefix, etl, bounded, checkpoint_ms,
checkpoints (a folder), parallelism, latest (start at the end of the topic), restore (the folder of
a checkpoint to begin with), naming (of transactions: INCREMENTING or POOLING).
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyflink.table import (  # type: ignore[import-not-found]
    EnvironmentSettings,
    TableEnvironment,
)

_PLAIN = "k BYTES, v BYTES"
_ORDER = (
    "k BYTES, order_id STRING, customer STRING, country STRING, currency STRING, "
    "quantity INT, cents BIGINT"
)
_CLEAN = (
    "k BYTES, order_id STRING, customer STRING, region STRING, currency STRING, total_cents BIGINT"
)
_ETL = """
    SELECT k, order_id, customer,
        CASE WHEN country IN ('DE', 'AT', 'CH') THEN 'DACH'
             WHEN country IN ('FR', 'GB', 'NL') THEN 'WEST'
             WHEN country = 'US' THEN 'AMERICAS' ELSE 'OTHER' END,
        currency, quantity * cents
    FROM source WHERE quantity > 0
"""


def main() -> None:
    """Run the job; a bounded one ends by itself."""
    job: dict[str, Any] = json.loads(sys.argv[1])
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for name, value in _configuration(job).items():
        tables.get_config().set(name, value)
    columns = (_ORDER, _CLEAN) if job["etl"] else (_PLAIN, _PLAIN)
    tables.execute_sql(_table("source", columns[0], _source(job)))
    tables.execute_sql(_table("sink", columns[1], _sink(job)))
    query = _ETL if job["etl"] else "SELECT k, v FROM source"
    tables.execute_sql(f"INSERT INTO sink {query}").wait()


def _configuration(job: dict[str, Any]) -> dict[str, str]:
    restored = {"execution.state-recovery.path": job["restore"]} if job.get("restore") else {}
    return restored | {
        "pipeline.jars": f"file://{job['connector']}",
        "pipeline.object-reuse": "true",
        "parallelism.default": str(job["parallelism"]),
        "execution.checkpointing.interval": f"{job['checkpoint_ms']} ms",
        "execution.checkpointing.dir": f"file://{job['checkpoints']}",
        "rest.address": "127.0.0.1",
        "rest.bind-address": "127.0.0.1",
        "jobmanager.rpc.address": "127.0.0.1",
        "taskmanager.host": "127.0.0.1",
        "taskmanager.bind-host": "127.0.0.1",
    }


def _table(name: str, columns: str, options: dict[str, str]) -> str:
    told = ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
    return f"CREATE TABLE {name} ({columns}) WITH ({told})"


def _formats(job: dict[str, Any]) -> dict[str, str]:
    return {
        "connector": "kafka",
        "properties.bootstrap.servers": job["bootstrap"],
        "key.format": "raw",
        "key.fields": "k",
        "value.format": "json" if job["etl"] else "raw",
        "value.fields-include": "EXCEPT_KEY",
    }


def _source(job: dict[str, Any]) -> dict[str, str]:
    options = _formats(job) | {
        "topic": job["input"],
        "scan.startup.mode": "latest-offset" if job.get("latest") else "earliest-offset",
        "properties.max.poll.records": "20000",
        "properties.max.partition.fetch.bytes": "8388608",
        "properties.receive.buffer.bytes": "4194304",
    }
    if job["bounded"]:
        options |= {"scan.bounded.mode": "latest-offset", "properties.fetch.min.bytes": "1000000"}
    return options


def _sink(job: dict[str, Any]) -> dict[str, str]:
    options = _formats(job) | {
        "topic": job["output"],
        "sink.delivery-guarantee": "exactly-once",
        "sink.transactional-id-prefix": job["prefix"],
        "properties.transaction.timeout.ms": "600000",
        "properties.compression.type": "lz4",
    }
    if job.get("naming"):
        options["sink.transaction-naming-strategy"] = job["naming"]
    return options | {f"properties.{name}": value for name, value in job["producer"].items()}


if __name__ == "__main__":
    main()
