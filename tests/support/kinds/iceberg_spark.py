"""Spark with Apache Iceberg's own runtime, in a process of its own: what it reads of tables.

A JVM has its jars from its start, so this one is not the JVM of the other tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.servers.jars import server_jars

_ROOT = Path(__file__).parents[3]


class Asked(NamedTuple):
    """A query of ``lake.db.…``, or a statement."""

    sql: str


class Read(NamedTuple):
    """The rows of a query, as Spark prints them, and how many files of the table it planned."""

    rows: list[list[str | None]]
    files: int


def asked(database: Path, warehouse: str, *queries: str) -> list[Read]:
    """Run queries on the tables of an SQL catalog, as ``lake.…``."""
    given = json.dumps([str(database), warehouse, queries])
    command = [sys.executable, "-m", "tests.support.kinds.iceberg_spark"]
    ran = subprocess.run(
        command, input=given, cwd=_ROOT, capture_output=True, text=True, timeout=400, check=False
    )
    assert ran.returncode == 0, ran.stderr[-5000:]
    return [Read(*each) for each in json.loads(ran.stdout.splitlines()[-1])]


def _planned(plan: Any) -> int:
    """The files that Iceberg's scans planned, by their own metric."""
    found = plan.metrics().get("resultDataFiles")
    here = int(found.get().value()) if found.isDefined() else 0
    children = plan.children()
    return here + sum(_planned(children.apply(at)) for at in range(children.size()))


def main() -> None:
    from pyspark.sql import SparkSession

    database, warehouse, queries = json.loads(sys.stdin.read())
    jars = [*server_jars("iceberg-spark-4.1-1.12.0"), *server_jars("iceberg-rest-1.10.1")]
    wanted = [str(jar) for jar in jars if "spark-runtime" in jar.name or "sqlite" in jar.name]
    settings = {
        "spark.jars": ",".join(wanted),
        "spark.ui.enabled": "false",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "Asia/Kolkata",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "spark.sql.catalog.lake.uri": f"jdbc:sqlite:{database}",
        "spark.sql.catalog.lake.warehouse": warehouse,
    }
    builder = SparkSession.builder.master("local[1]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    told = []
    for query in queries:
        df = spark.sql(query)
        rows = [[None if cell is None else str(cell) for cell in row] for row in df.collect()]
        told.append([rows, _planned(df._jdf.queryExecution().executedPlan())])
    print(json.dumps(told))  # noqa: T201


if __name__ == "__main__":
    main()
