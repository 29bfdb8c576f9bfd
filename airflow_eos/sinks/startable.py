"""What Spark's own ``start()`` refuses, asked before a start takes anything from a live driver.

Spark says it last, after recovery and the term, which stops whoever runs now: a second start that
is only misspelt would end a healthy query. Nothing of Spark's can come later than the term instead:
the term stands before Spark reads its logs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OUTPUT_MODES = {"append": "Append", "update": "Update", "complete": "Complete"}


def require_startable(rows: DataFrame, *, output_mode: str, query_name: str | None) -> None:
    """Refuse what Spark would refuse.

    Args:
        rows: what the sink is going to write of the streaming query.
        output_mode: Spark's output mode.
        query_name: Spark's query name.

    Raises:
        ConfigurationError: Spark has no such output mode, or does not run this query with it; or
            a query of this name is running.
    """
    spark = rows.sparkSession
    if output_mode.lower() not in _OUTPUT_MODES:
        raise ConfigurationError(
            f"output_mode {output_mode!r}: expected {', '.join(map(repr, _OUTPUT_MODES))}."
        )
    if query_name and any(query.name == query_name for query in spark.streams.active):
        raise ConfigurationError(
            f"A query with the name {query_name!r} is running in this Spark session, and goes on. "
            "Stop it first (drain), or choose another query_name."
        )
    if spark.conf.get("spark.sql.streaming.unsupportedOperationCheck", "true") != "false":
        _require_supported(spark, rows, output_mode)


def _require_supported(spark: SparkSession, rows: DataFrame, output_mode: str) -> None:
    """By the check that ``start()`` makes; it is the same call from Spark 2 to 4.2."""
    from pyspark.errors import AnalysisException

    sql = spark._jvm.org.apache.spark.sql  # type: ignore[union-attr]  # noqa: SLF001
    mode = getattr(sql.streaming.OutputMode, _OUTPUT_MODES[output_mode.lower()])()
    plan = rows._jdf.queryExecution().analyzed()  # noqa: SLF001 - no public name for it
    try:
        sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan, mode)
    except AnalysisException as error:
        said = str(error).partition("\n")[0]
        raise ConfigurationError(
            f"Spark does not run this query with output_mode {output_mode!r}: {said} Choose "
            "another output_mode, or change the query."
        ) from error
