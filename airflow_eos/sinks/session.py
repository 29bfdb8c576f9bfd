"""What the user's Spark must be, and where Spark would look for a path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.checkpoint.locations import LOCAL, located
from airflow_eos.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def classic_session(df: DataFrame) -> SparkSession:
    """The session, refused where ``foreachBatch`` would not run in this process."""
    if not df.isStreaming:
        raise ConfigurationError("The DataFrame is not streaming: read it with spark.readStream.")
    spark = df.sparkSession
    if not hasattr(spark, "_jsparkSession"):
        raise ConfigurationError(
            "Spark Connect runs foreachBatch elsewhere, where decisions cannot be tied to this "
            "driver. Start the app with spark-submit (classic Spark)."
        )
    return spark


def deploy_mode(spark: SparkSession) -> str:
    """Where the driver runs, as Spark names it: ``client`` or ``cluster``."""
    if spark.conf.get("spark.kubernetes.submitInDriver", "false") == "true":
        return "cluster"  # inside of its pod Kubernetes submits the driver once more, as a client
    return str(spark.conf.get("spark.submit.deployMode", "client"))


def namespace(spark: SparkSession) -> str:
    """The namespace of the driver's pod and of its executors'; empty where Spark runs elsewhere."""
    if not str(spark.sparkContext.master).startswith("k8s"):
        return ""
    return str(spark.conf.get("spark.kubernetes.namespace", "default"))  # Spark's own default


_STATEFUL = {
    "Aggregate",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "Distinct",
    "FlatMapGroupsInPandasWithState",
    "FlatMapGroupsWithState",
    "GlobalLimit",
    "TransformWithState",
    "TransformWithStateInPandas",
    "TransformWithStateInPySpark",
}
"""Spark's logical operators that keep state where what they read is a stream."""


def stateful(df: DataFrame) -> tuple[str, ...]:
    """The operators of a streaming query that keep state, by Spark's names; a join of two streams.

    Asked of the analysed plan; ``nodeName``, ``children`` and ``isStreaming`` are the same in
    Spark 4.0 to 4.2.
    """
    found = set()
    waiting = [df._jdf.queryExecution().analyzed()]  # noqa: SLF001
    while waiting:
        node = waiting.pop()
        name = str(node.nodeName())
        children = [node.children().apply(i) for i in range(node.children().size())]
        streams = sum(child.isStreaming() for child in children)
        if (name in _STATEFUL and streams) or (name == "Join" and streams > 1):
            found.add(name)
        waiting += children
    return tuple(sorted(found))


def absolute(spark: SparkSession, location: str) -> str:
    """The checkpoint as an absolute location, the same for Spark and for our own store."""
    found = located(location)
    if found.scheme != LOCAL or location.lower().startswith("file:/"):
        return found.for_spark
    default = spark.sparkContext._jsc.hadoopConfiguration().get("fs.defaultFS")  # noqa: SLF001
    if not str(default).startswith("file:"):
        raise ConfigurationError(
            f"checkpoint_location {location!r} has no scheme, and Spark's default file system is "
            f"{default}. Write the whole URL (file:///…, s3a://…, gs://…)."
        )
    return found.for_spark
