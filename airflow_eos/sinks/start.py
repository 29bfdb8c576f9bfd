"""``start_exactly_once``: refuse, recover, then start the query."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import structlog

from airflow_eos.checkpoint import (
    CheckpointStore,
    DecisionLog,
    Pipeline,
    claim,
    clear_drain,
    take_term,
)
from airflow_eos.checkpoint.rulings import read_acceptance, read_rulings
from airflow_eos.errors import ConfigurationError
from airflow_eos.sinks.at_least_once import AtLeastOnceBatch
from airflow_eos.sinks.at_most_once import (
    AtMostOnceBatch,
    is_spent,
    require_never_exact,
    require_not_spent,
)
from airflow_eos.sinks.authority import Authority, Evaluation
from airflow_eos.sinks.governed import (
    GovernedSink,
    check_policy,
    chosen_trigger,
    retained_batches,
    retaining,
)
from airflow_eos.sinks.heartbeat import HeartbeatWriter
from airflow_eos.sinks.one import OneSink
from airflow_eos.sinks.outputs import Output, Outputs
from airflow_eos.sinks.planned import PlannedSink
from airflow_eos.sinks.policy import CheckpointPolicy
from airflow_eos.sinks.port import Guarantee
from airflow_eos.sinks.query import ExactlyOnceBatch
from airflow_eos.sinks.replay import promise_in_flight
from airflow_eos.sinks.running import ExactlyOnceQuery, GuardedBatch
from airflow_eos.sinks.source_topics import topics_watched
from airflow_eos.sinks.sources import check_sources
from airflow_eos.sinks.takeover import take_over
from airflow_eos.sinks.trigger import trigger_interval

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_eos.checkpoint import Phase
    from airflow_eos.protocol.participant import Participant
    from airflow_eos.sinks.port import BatchSink, Sink

log = structlog.get_logger(__name__)


def start_exactly_once(
    df: DataFrame,
    sink: Sink | Sequence[Output],
    *,
    checkpoint_location: str,
    trigger: Mapping[str, Any] | None = None,
    output_mode: str = "append",
    query_name: str | None = None,
    guarantee: Guarantee = "exactly_once",
    storage_options: Mapping[str, str] | None = None,
    policy: CheckpointPolicy | None = None,
) -> ExactlyOnceQuery:
    """Start a streaming query whose rows a ``read_committed`` reader gets exactly once.

    Args:
        df: a streaming DataFrame; for Kafka with the columns value, and optionally key, topic,
            partition, headers, timestamp.
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

    Returns:
        The running query; ``awaitTermination`` raises the error that ended it.

    Raises:
        ConfigurationError: an argument, a column or a source cannot work.
        TimeoutBudgetError: the timeouts do not fit together or the broker.
        OwnershipError: the checkpoint or the prefix belongs to another pipeline.
        TopicError, KafkaUnavailableError: the sink's topic or cluster is not there.
        DecisionNeededError: recovery found what only a person may decide.
    """
    spark = _classic(df)
    policy = policy or CheckpointPolicy()
    trigger = chosen_trigger(trigger, policy)
    interval = trigger_interval(trigger)
    location = _location(spark, checkpoint_location)
    store = CheckpointStore.open(location, storage_options=storage_options)
    if guarantee not in get_args(Guarantee):
        raise ConfigurationError(
            f"guarantee {guarantee!r}: expected {' or '.join(map(repr, get_args(Guarantee)))}."
        )
    sources = check_sources(df, guarantee)
    check_policy(policy, guarantee)
    whole = (
        Outputs(tuple(sink), guarantee) if isinstance(sink, Sequence) else OneSink(sink, guarantee)
    ).bound(store)
    whole.rows(df)
    whole.check(spark)
    with ExitStack() as resources, retaining(spark, policy):
        heartbeat = HeartbeatWriter(
            store, application_id=spark.sparkContext.applicationId, trigger=interval
        )
        evaluation = Evaluation()

        def governed(sink: BatchSink) -> BatchSink:
            confirm = topics_watched(spark, sources, store, resources)
            return GovernedSink(sink, policy.timeout, confirm)

        batch = _batch(spark, whole, store, governed, interval, heartbeat, evaluation, resources)
        clear_drain(store)
        streamed = batch.streamed(df)
        heartbeat.start()
        run = GuardedBatch(batch, heartbeat, policy.min_pause)
        writer = (
            streamed.writeStream.outputMode(output_mode)
            .foreachBatch(run)
            .option("checkpointLocation", location)
            .trigger(**trigger)
        )
        try:
            query = (writer.queryName(query_name) if query_name else writer).start()
            evaluation.of(query)
            heartbeat.follow(query)
        except BaseException:
            heartbeat.stop("failed")  # or "starting" would count as a sign of life
            raise
        return ExactlyOnceQuery(query, run, heartbeat, resources.pop_all())


def _batch(
    spark: SparkSession,
    sink: OneSink | Outputs,
    store: CheckpointStore,
    governed: Callable[[BatchSink], BatchSink],
    interval: timedelta,
    heartbeat: HeartbeatWriter,
    evaluation: Evaluation,
    resources: ExitStack,
) -> ExactlyOnceBatch | AtLeastOnceBatch | AtMostOnceBatch:
    """Refuse what cannot work; then take the term, which stops whoever runs now; then recover."""
    if sink.guarantee == "at_least_once":
        return AtLeastOnceBatch(governed(PlannedSink(sink)), on_phase=heartbeat.mark)
    retained = retained_batches(spark)
    driver = f"driver {spark.sparkContext.applicationId} on {socket.gethostname()}:{os.getpid()}"
    if sink.guarantee == "at_most_once":
        return _at_most_once(sink, store, driver, retained, heartbeat)
    participant = resources.enter_context(closing(sink.connect(interval)))
    store.check_create_if_absent()
    require_not_spent(store)
    decisions = DecisionLog(store)
    _claim(store, participant, driver)
    tenure, offsets = take_over(store, decisions, participant, driver=driver)
    heartbeat.term = tenure.term.number

    def on_phase(batch_id: int, phase: Phase) -> None:
        heartbeat.mark(batch_id, phase)
        if phase == "waiting":
            decisions.prune(batch_id - retained)

    return ExactlyOnceBatch(
        governed(sink if promise_in_flight(store) else PlannedSink(sink)),
        participant,
        decisions,
        Authority(tenure, offsets, participant, evaluated_at=evaluation.at),
        rulings=partial(read_rulings, store),
        accepted=partial(read_acceptance, store),
        driver=f"{driver} run {uuid.uuid4().hex[:8]}",
        on_phase=on_phase,
    )


def _at_most_once(
    sink: OneSink | Outputs,
    store: CheckpointStore,
    driver: str,
    retained: int,
    heartbeat: HeartbeatWriter,
) -> AtMostOnceBatch:
    store.check_create_if_absent()
    require_never_exact(store)
    tenure = take_term(store, taken_by=driver)
    heartbeat.term = tenure.term.number
    return AtMostOnceBatch(
        sink if is_spent(store) else PlannedSink(sink),
        store,
        tenure,
        retained=retained,
        on_phase=heartbeat.mark,
    )


def _claim(store: CheckpointStore, participant: Participant, driver: str) -> None:
    """Own the checkpoint."""
    pipeline = Pipeline(
        id=uuid.uuid4().hex,
        participants=participant.members,
        created_at_ms=time.time_ns() // 1_000_000,
        created_by=driver,
    )
    claim(store, pipeline)


def _classic(df: DataFrame) -> SparkSession:
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


def _location(spark: SparkSession, location: str) -> str:
    """The checkpoint as an absolute location, the same for Spark and for our own store."""
    if "://" in location or location.startswith("file:"):
        return location
    default = spark.sparkContext._jsc.hadoopConfiguration().get("fs.defaultFS")  # noqa: SLF001
    if not str(default).startswith("file:"):
        raise ConfigurationError(
            f"checkpoint_location {location!r} has no scheme, and Spark's default file system is "
            f"{default}. Write the whole URL (file:///…, s3a://…, gs://…)."
        )
    return str(Path(location).absolute())
