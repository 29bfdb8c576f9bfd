"""What the doctor asks a Spark that it starts: its Python workers, and its own file manager."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.checkpoint import CheckpointStore
from airflow_eos.errors import EosError
from airflow_eos.supervision import doctor
from airflow_eos.supervision.doctor import Line, tried

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

ROUNDS = 20


def spark_lines(
    master: str, conf: Mapping[str, str], location: str, storage_options: Mapping[str, str] | None
) -> list[Line]:
    """Start a Spark app on ``master``, ask it, and end it; what is wrong is a line.

    Args:
        master: of Spark; its workers are those that run there.
        conf: Spark's settings, as the pipeline's app has them.
        location: of the checkpoint.
        storage_options: of its store.
    """
    try:
        spark = _session(master, conf)
    except EosError as error:
        return [doctor.failed("Spark app", error)]
    try:
        return [
            *tried("Spark's workers", lambda: _workers(spark)),
            *tried("Spark's own logs, raced", lambda: _raced(spark, location, storage_options)),
        ]
    finally:
        spark.stop()


def _session(master: str, conf: Mapping[str, str]) -> SparkSession:
    from airflow_eos.errors import ConfigurationError

    try:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigurationError(
            f"--master needs pyspark here ({error}): pip install 'airflow-provider-eos[spark]'."
        ) from error
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    builder = SparkSession.builder.master(master).appName("airflow-eos doctor")
    try:
        return builder.config(map={**quiet, **conf}).getOrCreate()
    except (PySparkException, Py4JError) as error:
        [said, *_] = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigurationError(
            f"No Spark app could be started on {master}: {said} Check the master, and what "
            "spark-submit would be told with --conf."
        ) from error


def _workers(spark: SparkSession) -> Line:
    from airflow_eos.delivery.workers import check_workers
    from airflow_eos.kinds.kafka.sink import TASK_MODULES, WRITER_MODULES

    modules = (*TASK_MODULES, *WRITER_MODULES["arrow"])
    check_workers(spark, modules=modules)
    count = spark.sparkContext.defaultParallelism
    return Line("Spark's workers", "ok", f"{count} tasks could import what KafkaSink's tasks need")


def _raced(spark: SparkSession, location: str, storage_options: Mapping[str, str] | None) -> Line:
    from airflow_eos.delivery.spark_session import race_sparks_logs

    store = CheckpointStore.open(location, storage_options=storage_options)
    return doctor.sparks_raced(race_sparks_logs(spark, store, rounds=ROUNDS))
