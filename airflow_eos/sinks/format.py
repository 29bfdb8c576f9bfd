"""The driver of ``writeStream.format("eos")``, which Spark's JVM starts (``java/EosSink.java``).

So a query delivers that no Python of ours has written: a Spark Connect client's, or a declarative
pipeline's. The options of the sink are the settings of an app (:mod:`airflow_eos.core.settings`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos.core.arguments import spelled
from airflow_eos.core.delivery.options import nearest
from airflow_eos.core.delivery.query import Drained
from airflow_eos.core.delivery.spark_session import QuerySettings, trigger_interval
from airflow_eos.core.settings import SETTINGS, AppSettings
from airflow_eos.errors import ConfigurationError
from airflow_eos.sinks.app import App

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway  # type: ignore[import-untyped]
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from airflow_eos.core.delivery.query import ExactlyOnceQuery

JAR = Path(__file__).parent / "java" / "eos-sink.jar"
"""What Spark needs to know the format, at its start."""
_TOPIC, _CHECKPOINT = "topic", "checkpoint_location"
_OF_SPARK = {"checkpointlocation", "path"}
_ELSEWHERE = {
    **dict.fromkeys(("max_offsets_per_trigger", "skip_lost_input", "start"), "the source"),
    **dict.fromkeys(("resume_from_group", "standby"), "start_exactly_once"),
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
            f'format("eos") has no option {name!r}{has_it}. It takes '
            f"{', '.join([_TOPIC, *takes])}."
        )
    given: dict[str, Any] = {_CHECKPOINT: checkpoint}
    for name in takes:
        setting = SETTINGS[name]
        told = options.get(name) or setting.told(os.environ) or setting.default
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
            query_name=None,  # Spark's own, which has it
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

        ensure_callback_server_started(self._gateway)
        batch = BatchCall(frame.sparkSession, function)
        query = StreamingQuery(self._sink.started(frame._jdf, batch))  # noqa: SLF001
        batch.may_begin(lambda: require_trigger(query, trigger))
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


def require_trigger(query: StreamingQuery, told: Mapping[str, Any]) -> None:
    """Refuse a query with another trigger than its sink was told, by which it is watched."""
    trigger = query._jsq.streamingQuery().trigger()  # noqa: SLF001 - Spark tells it no sink
    name = trigger.getClass().getSimpleName().removesuffix("$")
    interval = timedelta(
        milliseconds=trigger.intervalMs() if name == "ProcessingTimeTrigger" else 0
    )
    if (name == "AvailableNowTrigger", interval) != ("availableNow" in told, trigger_interval(told)):
        is_timed = name == "ProcessingTimeTrigger"
        found = spelled(interval) if is_timed else name
        raise ConfigurationError(
            f"The query has the trigger {found!r}, and its eos sink was told {dict(told)!r}: a sink "
            "cannot see the trigger, so it is told by the option trigger_interval ('1 second' "
            "where it is not given; 'available-now'). Give both alike."
        )


class BatchCall:
    """The function of the batches, as the JVM calls it."""

    def __init__(self, spark: SparkSession, function: Callable[[DataFrame, int], None]) -> None:
        self._spark, self._function = spark, function
        self._asked: Future[None] = Future()

    def may_begin(self, require: Callable[[], None]) -> None:
        """Let the batches begin, or fail where ``require`` does."""
        try:
            self._asked.set_result(require())
        except Exception as error:
            self._asked.set_exception(error)

    def apply(self, rows: Any, batch_id: int) -> bool:
        """Deliver the batch; return False where it is left to the next start."""
        from pyspark.sql import DataFrame, SparkSession

        self._asked.result(_SOON_S)
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

    sink = JvmSink(launch_gateway())
    try:
        query = sink.start()
    except Exception as error:
        sink.refuse(error)
        raise
    query.awaitTermination()


if __name__ == "__main__":
    main()
