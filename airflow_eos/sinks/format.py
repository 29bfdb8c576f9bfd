"""The driver of ``writeStream.format("eos")``, which Spark's JVM starts (``java/EosSink.java``).

So a query delivers that no Python of ours has written: a Spark Connect client's, or a declarative
pipeline's. The options of the sink are the settings of an app (:mod:`airflow_eos.core.settings`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos.core.delivery.options import nearest
from airflow_eos.core.delivery.query import Drained, ExactlyOnceQuery
from airflow_eos.core.delivery.spark_session import QuerySettings, trigger_interval
from airflow_eos.core.settings import SETTINGS, AppSettings
from airflow_eos.errors import ConfigurationError, Remedy
from airflow_eos.sinks.app import App

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway  # type: ignore[import-untyped]
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

JAR = Path(__file__).parent / "java" / "eos-sink.jar"
"""What Spark needs to know the format, at its start."""
_TOPIC, _CHECKPOINT = "topic", "checkpoint_location"
_OF_SPARK = {"checkpointlocation", "path", "queryname"}
_ELSEWHERE = {
    **dict.fromkeys(("max_offsets_per_trigger", "skip_lost_input", "start"), "the source"),
    **dict.fromkeys(("resume_from_group", "standby"), "start_exactly_once"),
    "partitionby": "an output of files, or the table,",
}
"""Settings of an app that the sink does not have, and what has them."""
_SOON_S = 60.0


def settings_of(options: Mapping[str, str], checkpoint: str) -> AppSettings:
    """Return the settings that the options of a sink say, and the environment where they do not.

    Raises:
        ConfigurationError: an option is not known, is missing or means nothing.
    """
    takes = [each for each in SETTINGS if each not in _ELSEWHERE and each != _CHECKPOINT]
    for name in sorted(options.keys() - {_TOPIC, *takes} - _OF_SPARK):
        has_it = f"; {_ELSEWHERE[name]} has it" if name in _ELSEWHERE else nearest(name, takes)
        raise ConfigurationError(
            f'format("eos") has no option {name!r}{has_it}. It takes {", ".join([_TOPIC, *takes])}.'
        )
    given: dict[str, Any] = {_CHECKPOINT: checkpoint}
    for name in takes:
        setting = SETTINGS[name]
        told = options.get(name) or setting.from_environment(os.environ) or setting.default
        given[name] = setting.argument.of(name, told)
    return AppSettings(**given)


class JvmSink:
    """The sink of a query that a JVM is about to run, as its driver sees it.

    Args:
        gateway: the way into the JVM; its entry point is the ``EosSink``.
    """

    def __init__(self, gateway: JavaGateway) -> None:
        self._gateway, self._sink = gateway, gateway.entry_point

    def start(self) -> ExactlyOnceQuery:
        """Start the query; see ``start_exactly_once``."""
        from airflow_eos.core.delivery.start import start_query

        query, options = self._sink.query(), dict(self._sink.options())
        app = App.of_settings(settings_of(options, str(query.resolvedCheckpointLocation())))
        if not app.outputs and _TOPIC not in options:
            raise ConfigurationError('format("eos") has neither the option topic nor outputs.')
        settings = QuerySettings(
            app.checkpoint,
            app.storage_options,
            app.trigger,
            app.policy,
            output_mode=str(query.outputMode()),
            query_name=options.get("queryname"),
            begin=lambda frame, function: self.begin(frame, function, app.trigger),
        )
        return start_query(
            self._rows(query),
            app.outputs or app.sink(options[_TOPIC]),
            settings,
            guarantee=app.guarantee,
            consumer_group=app.consumer_group,
        )

    def refuse(self, error: Exception) -> None:
        """Let Spark refuse the query, with the error."""
        self._sink.refuse(f"{type(error).__name__}: {error}")

    def begin(
        self,
        frame: DataFrame,
        function: Callable[[DataFrame, int], None],
        trigger: Mapping[str, Any],
    ) -> StreamingQuery:
        """Give Spark the plan, and the function of its batches; return the query, which runs."""
        from pyspark.java_gateway import ensure_callback_server_started
        from pyspark.sql.streaming.query import StreamingQuery

        ensure_callback_server_started(self._gateway)  # type: ignore[no-untyped-call]
        batch = BatchCall(frame.sparkSession, function)
        query = StreamingQuery(self._sink.started(frame._jdf, batch))  # noqa: SLF001
        try:
            require_trigger(trigger_of(query), trigger)
        except ConfigurationError as error:
            batch.admitted.set_exception(error)
        else:
            batch.admitted.set_result(None)
        return query

    def _rows(self, query: Any) -> DataFrame:
        """Return the rows of the query, in a session of its own."""
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import DataFrame, SparkSession

        jvm, session = self._gateway.jvm, self._sink.session()
        java = jvm.JavaSparkContext.fromSparkContext(session.sparkContext())
        conf = SparkConf(_jvm=jvm, _jconf=java.getConf())
        theirs = jvm.SparkSession.getDefaultSession()
        spark = SparkSession(SparkContext(gateway=self._gateway, jsc=java, conf=conf), session)
        if theirs.isDefined():  # which PySpark has just replaced, for all who share the JVM
            jvm.SparkSession.setDefaultSession(theirs.get())
        return DataFrame(jvm.Dataset.ofRows(session, query.inputQuery()), spark)


def trigger_of(query: StreamingQuery) -> dict[str, Any]:
    """Return the trigger of a running query, as ``start_exactly_once`` takes it."""
    found = query._jsq.streamingQuery().trigger()  # noqa: SLF001 - no public name for it
    name = found.getClass().getSimpleName().removesuffix("$")
    if name == "ProcessingTimeTrigger":
        return {"processingTime": f"{found.intervalMs()} milliseconds"}
    return {"availableNow" if name == "AvailableNowTrigger" else name: True}


def require_trigger(found: Mapping[str, Any], told: Mapping[str, Any]) -> None:
    """Refuse a query whose trigger is not the one that its sink was told.

    Raises:
        ConfigurationError: with both.
    """
    if found.keys() == told.keys() and trigger_interval(found) == trigger_interval(told):
        return
    raise ConfigurationError(
        f"The query has the trigger {dict(found)}, and its eos sink was told {dict(told)}. Spark "
        "shows its trigger to no sink, which is told by the option trigger_interval: '1 second' "
        "where it is not given, or 'available-now'.",
        Remedy(change="give trigger_interval, and the trigger of the query, alike", start=True),
    )


class BatchCall:
    """The function of the batches, as the JVM calls it.

    Attributes:
        admitted: done once the batches may begin; with an error, none does.
    """

    def __init__(self, spark: SparkSession, function: Callable[[DataFrame, int], None]) -> None:
        self._spark, self._function = spark, function
        self.admitted: Future[None] = Future()

    def apply(self, rows: Any, batch_id: int) -> bool:
        """Deliver the batch; return False where it is left to the next start."""
        from pyspark.sql import DataFrame, SparkSession

        self.admitted.result(_SOON_S)
        session = SparkSession(self._spark.sparkContext, rows.sparkSession())
        try:
            self._function(DataFrame(rows, session), batch_id)
        except Drained:
            return False
        return True

    class Java:
        """What it is to py4j."""

        implements = ("java.util.function.BiFunction",)


def main() -> None:
    """Drive the query of the sink that has started this process, until it ends."""
    from pyspark.java_gateway import launch_gateway

    sink = JvmSink(launch_gateway())  # type: ignore[no-untyped-call]
    try:
        query = sink.start()
    except Exception as error:
        sink.refuse(error)
        raise
    query.awaitTermination()


if __name__ == "__main__":
    main()
