"""The driver of ``writeStream.format("eos")``, which Spark's JVM starts: ``java/EosSink.java``.

The query is written elsewhere: by a Spark Connect client, by a declarative pipeline, or by an app.
The options of the sink are the settings of an app (:mod:`airflow_eos.core.settings`), and
``topic``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_eos.core.delivery.options import nearest
from airflow_eos.core.delivery.query import Drained
from airflow_eos.core.delivery.spark_session import QuerySettings
from airflow_eos.core.settings import SETTINGS, AppSettings
from airflow_eos.errors import ConfigurationError
from airflow_eos.sinks.app import App

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from airflow_eos.core.delivery.query import ExactlyOnceQuery

TOPIC = "topic"
_SPARKS = {"checkpointlocation", "queryname", "outputmode"}
"""What the sink tells beside its options."""
_NOT_HERE = {
    **dict.fromkeys(("max_offsets_per_trigger", "skip_lost_input", "start"), "the source"),
    **dict.fromkeys(("resume_from_group", "standby"), "an app with start_exactly_once"),
}
"""Settings that the sink does not have, and what has them."""


def app_of(options: Mapping[str, str], environment: Mapping[str, str]) -> App:
    """Return the settings of a query by its options, else by the environment of Spark.

    Raises:
        ConfigurationError: an option is not known, is missing or means nothing.
    """
    known = [name for name in SETTINGS if name not in _NOT_HERE and name != "checkpoint_location"]
    for name in sorted(options.keys() - {*known, TOPIC} - _SPARKS):
        if name in _NOT_HERE:
            raise ConfigurationError(f'format("eos"): {name} is an option of {_NOT_HERE[name]}.')
        raise ConfigurationError(
            f'format("eos") has no option {name!r}{nearest(name, [*known, TOPIC])}. It takes '
            f"{', '.join([TOPIC, *known])}."
        )
    given = {"checkpoint_location": options["checkpointlocation"]}
    for name in known:
        setting = SETTINGS[name]
        value = options.get(name, setting.told(environment) or setting.default)
        given[name] = setting.argument.of(name, value)
    return App.of_settings(AppSettings(**given))


def start(told: Mapping[str, str], rows: DataFrame, sink: Any) -> ExactlyOnceQuery:
    """Start the query that Spark is about to begin; see ``start_exactly_once``."""
    from airflow_eos.core.delivery.start import start_query

    app = app_of(told, os.environ)
    if not app.outputs and TOPIC not in told:
        raise ConfigurationError('format("eos") needs one of the options topic and outputs.')
    return start_query(
        rows,
        app.outputs or app.sink(told[TOPIC]),
        QuerySettings(
            app.checkpoint,
            app.storage_options,
            app.trigger,
            app.policy,
            told["outputmode"],
            told["queryname"],
            begin=partial(begun, sink, app.trigger),
        ),
        guarantee=app.guarantee,
        consumer_group=app.consumer_group,
    )


def begun(
    sink: Any,
    trigger: Mapping[str, Any],
    frame: DataFrame,
    function: Callable[[DataFrame, int], None],
) -> StreamingQuery:
    """Give Spark the plan and the function; return the query, which runs from now on."""
    from pyspark.java_gateway import ensure_callback_server_started
    from pyspark.sql.streaming.query import StreamingQuery

    ensure_callback_server_started(frame.sparkSession.sparkContext._gateway)
    return StreamingQuery(sink.started(frame._jdf, Batch(frame.sparkSession, function)))


class Batch:
    """The function of the batches, as the JVM calls it; False: the batch waits for another start."""

    def __init__(self, spark: SparkSession, function: Callable[[DataFrame, int], None]) -> None:
        self._spark, self._function = spark, function

    def apply(self, rows: Any, batch_id: int) -> bool:
        """Deliver the batch."""
        from pyspark.sql import DataFrame, SparkSession

        session = SparkSession(self._spark.sparkContext, rows.sparkSession())
        try:
            self._function(DataFrame(rows, session), batch_id)
        except Drained:
            return False
        return True

    class Java:
        """For py4j."""

        implements = ("java.util.function.BiFunction",)


def main() -> None:
    """Drive the query of the sink that has started this process."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import DataFrame, SparkSession

    gateway = launch_gateway()
    sink = gateway.entry_point
    try:
        context = sink.context()
        conf = SparkConf(_jvm=gateway.jvm, _jconf=context.getConf())
        spark = SparkSession(SparkContext(gateway=gateway, jsc=context, conf=conf), sink.session())
        query = start(dict(sink.told()), DataFrame(sink.rows(), spark), sink)
    except Exception as error:
        sink.refuse(f"{type(error).__name__}: {error}")
        raise
    query.awaitTermination()


if __name__ == "__main__":
    main()
