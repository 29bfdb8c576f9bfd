"""``start_exactly_once``: refuse, recover, then start the query."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast, get_args

from airflow_eos.checkpoint import CheckpointStore
from airflow_eos.errors import ConfigurationError
from airflow_eos.figures import observed_store, observer_of
from airflow_eos.sinks.authority import Evaluation
from airflow_eos.sinks.governed import GovernedSink, check_policy, chosen_trigger, retaining
from airflow_eos.sinks.guaranteed import guaranteed
from airflow_eos.sinks.heartbeat import HeartbeatWriter
from airflow_eos.sinks.one import OneSink
from airflow_eos.sinks.outputs import Output, Outputs
from airflow_eos.sinks.own_source import OwnSource, active_session, beside, is_own
from airflow_eos.sinks.policy import CheckpointPolicy
from airflow_eos.sinks.port import PROGRESS, Guarantee
from airflow_eos.sinks.running import ExactlyOnceQuery, GuardedBatch
from airflow_eos.sinks.session import (
    absolute,
    classic_session,
    deploy_mode,
    namespace,
    stateful,
)
from airflow_eos.sinks.source_topics import topics_watched
from airflow_eos.sinks.sources import check_sources
from airflow_eos.sinks.startable import require_startable
from airflow_eos.sinks.trigger import trigger_interval

if TYPE_CHECKING:
    from datetime import timedelta

    from pyspark.sql import DataFrame, SparkSession

    from airflow_eos.figures.events import Observer
    from airflow_eos.sinks.own_source import OpenedSource
    from airflow_eos.sinks.port import BatchSink, ProgressPlace, Sink
    from airflow_eos.sinks.sources import StreamSource


def start_exactly_once(
    df: DataFrame | OwnSource,
    sink: Sink | Sequence[Output],
    *,
    checkpoint_location: str,
    trigger: Mapping[str, Any] | None = None,
    output_mode: str = "append",
    query_name: str | None = None,
    guarantee: Guarantee = "exactly_once",
    storage_options: Mapping[str, str] | None = None,
    policy: CheckpointPolicy | None = None,
    consumer_group: ProgressPlace | None = None,
) -> ExactlyOnceQuery:
    """Start a streaming query whose rows a ``read_committed`` reader gets exactly once.

    Args:
        df: a streaming DataFrame; for Kafka with the columns value, and optionally key, topic,
            partition, headers, timestamp. Or an :class:`~airflow_eos.sources.ArrowKafkaSource`.
        sink: where the rows go, and within which times; or several outputs, which get their rows
            all or none.
        checkpoint_location: Spark's checkpoint; the decisions are kept in ``eos/`` below it. A
            local path, or a URL that obstore opens (s3, gs, az).
        trigger: ``{"processingTime": "1 second"}`` (the default) or ``{"availableNow": True}``.
        output_mode: Spark's output mode.
        query_name: Spark's query name.
        guarantee: ``exactly_once``; ``at_least_once``: rows are visible at once and possibly
            again after a crash; ``at_most_once``: at once, possibly missing after a crash.
        storage_options: for the object store (region, endpoint, credentials).
        policy: interval, pause and timeout of batches, and how many are kept.
        consumer_group: a :class:`~airflow_eos.sinks.ConsumerGroup` that shows how far the pipeline
            is, always the same for one checkpoint; only with ``exactly_once``.

    Returns:
        The running query; ``awaitTermination`` raises the error that ended it.

    Raises:
        ConfigurationError: an argument, a column or a source cannot work.
        TimeoutBudgetError: the timeouts do not fit together or the broker.
        OwnershipError: the checkpoint or the prefix belongs to another pipeline.
        TopicError, KafkaUnavailableError: the sink's topic or cluster is not there.
        DecisionNeededError: recovery found what only a person may decide.
    """
    spark = active_session() if is_own(df) else classic_session(cast("DataFrame", df))
    policy = policy or CheckpointPolicy()
    trigger = chosen_trigger(trigger, policy)
    interval = trigger_interval(trigger)
    location = absolute(spark, checkpoint_location)
    store = CheckpointStore.open(location, storage_options=storage_options)
    observer = observer_of(store.location)
    store = observed_store(store, observer)
    read = _read(df, spark, store, guarantee)
    check_policy(policy, guarantee)
    whole = beside(read.own, _one(sink, guarantee).bound(store))
    require_startable(whole.rows(read.frame), output_mode=output_mode, query_name=query_name)
    whole.check(spark)
    if consumer_group is not None:
        _check_progress(read.frame, whole, consumer_group)
    with ExitStack() as resources, retaining(spark, policy):
        look = read.watched(spark, store, resources)
        heartbeat = _heartbeat(spark, store, interval, observer)
        evaluation = Evaluation()

        def governed(sink: BatchSink) -> BatchSink:
            look()
            return GovernedSink(sink, policy.timeout, look)

        try:
            batch = guaranteed(
                spark,
                whole,
                store,
                governed,
                interval,
                heartbeat,
                evaluation,
                resources,
                consumer_group,
                partial(stateful, read.frame),
            )
            streamed = batch.streamed(read.frame)
            heartbeat.start()
            run = GuardedBatch(batch, heartbeat, policy.min_pause)
            writer = (
                streamed.writeStream.outputMode(output_mode)
                .foreachBatch(run)
                .option("checkpointLocation", location)
                .trigger(**trigger)
            )
            query = (writer.queryName(query_name) if query_name else writer).start()
            evaluation.of(query)
            heartbeat.follow(query)
        except BaseException as error:
            heartbeat.stop("failed", error)  # or "starting" would count as a sign of life
            raise
        return ExactlyOnceQuery(query, run, heartbeat, resources.pop_all())


@dataclass(frozen=True)
class _Read:
    """What the query reads: a DataFrame, of Spark's sources or of one of ours."""

    frame: DataFrame
    own: OpenedSource | None
    sources: Sequence[StreamSource]

    def watched(
        self, spark: SparkSession, store: CheckpointStore, resources: ExitStack
    ) -> Callable[[], None]:
        """A look at the topics; see :func:`~airflow_eos.sinks.source_topics.topics_watched`."""
        if self.own is not None:
            return self.own.watched(store, resources)
        return topics_watched(spark, self.sources, store, resources)


def _read(
    df: DataFrame | OwnSource, spark: SparkSession, store: CheckpointStore, guarantee: Guarantee
) -> _Read:
    """Refuse a guarantee that is none, and sources that cannot give it."""
    if guarantee not in get_args(Guarantee):
        raise ConfigurationError(
            f"guarantee {guarantee!r}: expected {' or '.join(map(repr, get_args(Guarantee)))}."
        )
    own = df.opened(spark, store) if is_own(df) else None
    frame = own.frame if own is not None else cast("DataFrame", df)
    return _Read(frame, own, check_sources(frame, guarantee))


def _one(sink: Sink | Sequence[Output], guarantee: Guarantee) -> OneSink | Outputs:
    """One sink, or several outputs as one."""
    if isinstance(sink, Sequence):
        return Outputs(tuple(sink), guarantee)
    return OneSink(sink, guarantee)


def _heartbeat(
    spark: SparkSession, store: CheckpointStore, interval: timedelta, observer: Observer | None
) -> HeartbeatWriter:
    return HeartbeatWriter(
        store,
        application_id=spark.sparkContext.applicationId,
        trigger=interval,
        master=str(spark.sparkContext.master),
        deploy_mode=deploy_mode(spark),
        namespace=namespace(spark),
        observer=observer,
    )


def _check_progress(df: DataFrame, sink: OneSink | Outputs, place: ProgressPlace) -> None:
    if sink.guarantee != "exactly_once" or PROGRESS in sink.names:
        raise ConfigurationError(
            f"consumer_group goes with guarantee 'exactly_once' (found {sink.guarantee!r}), whose "
            f"decisions name it, and no output may be called {PROGRESS!r} beside it."
        )
    kept = stateful(df) if place.resume else ()
    if kept:
        raise ConfigurationError(
            f"The query keeps state ({', '.join(kept)}), which is in its checkpoint alone: an "
            "empty one cannot go on from a consumer group. Leave ConsumerGroup(resume=True), which "
            "--resume-from-group says, away."
        )
