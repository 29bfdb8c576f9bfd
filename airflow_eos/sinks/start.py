"""``start_exactly_once``: refuse, recover, then start the query."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import timedelta
from functools import partial
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
from airflow_eos.protocol.group import reach_all
from airflow_eos.sinks.at_least_once import AtLeastOnceBatch, require_nothing_promised
from airflow_eos.sinks.at_most_once import (
    AtMostOnceBatch,
    is_spent,
    require_never_exact,
    require_not_spent,
)
from airflow_eos.sinks.authority import Authority, Evaluation
from airflow_eos.sinks.heartbeat import HeartbeatWriter
from airflow_eos.sinks.inheriting import say_drained
from airflow_eos.sinks.one import OneSink
from airflow_eos.sinks.outputs import Output, Outputs
from airflow_eos.sinks.planned import PlannedSink
from airflow_eos.sinks.port import PROGRESS, Guarantee
from airflow_eos.sinks.query import ExactlyOnceBatch
from airflow_eos.sinks.replay import promise_in_flight
from airflow_eos.sinks.running import ExactlyOnceQuery, GuardedBatch
from airflow_eos.sinks.session import absolute, classic_session, stateful
from airflow_eos.sinks.startable import require_startable
from airflow_eos.sinks.takeover import take_over
from airflow_eos.sinks.trigger import trigger_interval

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_eos.checkpoint import Phase
    from airflow_eos.protocol.participant import Participant
    from airflow_eos.sinks.port import Progress, ProgressPlace, Sink

log = structlog.get_logger(__name__)

_DEFAULT_TRIGGER = {"processingTime": "1 second"}


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
    consumer_group: ProgressPlace | None = None,
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
        consumer_group: a :class:`~airflow_eos.sinks.ConsumerGroup` that shows how far the pipeline
            is, always the same for one checkpoint; only with ``exactly_once``.

    Returns:
        The running query; ``awaitTermination`` raises the error that ended it.

    Raises:
        ConfigurationError: an argument or a column cannot work.
        TimeoutBudgetError: the timeouts do not fit together or the broker.
        OwnershipError: the checkpoint or the prefix belongs to another pipeline.
        TopicError, KafkaUnavailableError: the sink's topic or cluster is not there.
        DecisionNeededError: recovery found what only a person may decide.
    """
    spark = classic_session(df)
    interval = trigger_interval(trigger or _DEFAULT_TRIGGER)
    location = absolute(spark, checkpoint_location)
    store = CheckpointStore.open(location, storage_options=storage_options)
    if guarantee not in get_args(Guarantee):
        raise ConfigurationError(
            f"guarantee {guarantee!r}: expected {' or '.join(map(repr, get_args(Guarantee)))}."
        )
    whole = (
        Outputs(tuple(sink), guarantee) if isinstance(sink, Sequence) else OneSink(sink, guarantee)
    ).bound(store)
    require_startable(whole.rows(df), output_mode=output_mode, query_name=query_name)
    whole.check(spark)
    if consumer_group is not None:
        _check_progress(df, whole, consumer_group)
    with ExitStack() as resources:
        heartbeat = HeartbeatWriter(
            store, application_id=spark.sparkContext.applicationId, trigger=interval
        )
        evaluation = Evaluation()
        batch = _batch(
            spark, whole, store, interval, heartbeat, evaluation, resources, consumer_group
        )
        clear_drain(store)
        streamed = batch.streamed(df)
        heartbeat.start()
        run = GuardedBatch(batch, heartbeat)
        writer = (
            streamed.writeStream.outputMode(output_mode)
            .foreachBatch(run)
            .option("checkpointLocation", location)
            .trigger(**(trigger or _DEFAULT_TRIGGER))
        )
        try:
            query = (writer.queryName(query_name) if query_name else writer).start()
            evaluation.of(query)
        except BaseException:
            heartbeat.stop("failed")  # or "starting" would count as a sign of life
            raise
        return ExactlyOnceQuery(query, run, heartbeat, resources.pop_all())


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
            'empty one cannot go on from a consumer group. Leave resume (start="group") away.'
        )


def _batch(
    spark: SparkSession,
    sink: OneSink | Outputs,
    store: CheckpointStore,
    interval: timedelta,
    heartbeat: HeartbeatWriter,
    evaluation: Evaluation,
    resources: ExitStack,
    consumer_group: ProgressPlace | None = None,
) -> ExactlyOnceBatch | AtLeastOnceBatch | AtMostOnceBatch:
    """Refuse what cannot work; then take the term, which stops whoever runs now; then recover."""
    if sink.guarantee == "at_least_once":
        require_nothing_promised(store)
        return AtLeastOnceBatch(sink, on_phase=heartbeat.mark)
    retained = int(spark.conf.get("spark.sql.streaming.minBatchesToRetain") or 100)
    driver = f"driver {spark.sparkContext.applicationId} on {socket.gethostname()}:{os.getpid()}"
    if sink.guarantee == "at_most_once":
        return _at_most_once(sink, store, driver, retained, heartbeat)
    progress = consumer_group.opened(store) if consumer_group is not None else None
    participant = resources.enter_context(closing(_reached(sink, interval, progress)))
    if progress is not None:
        resources.callback(progress.close)
    store.check_create_if_absent()
    require_not_spent(store)
    decisions = DecisionLog(store)
    _claim(store, participant, driver)
    tenure, offsets = take_over(store, decisions, participant, driver=driver, progress=progress)
    if progress is not None:
        heartbeat.before_stopped = partial(say_drained, store, decisions, participant, progress)
    heartbeat.term = tenure.term.number

    def on_phase(batch_id: int, phase: Phase) -> None:
        heartbeat.mark(batch_id, phase)
        if phase == "waiting":
            decisions.prune(batch_id - retained)

    return ExactlyOnceBatch(
        sink if promise_in_flight(store) else PlannedSink(sink),
        participant,
        decisions,
        Authority(tenure, offsets, participant, evaluated_at=evaluation.at),
        rulings=partial(read_rulings, store),
        accepted=partial(read_acceptance, store),
        driver=f"{driver} run {uuid.uuid4().hex[:8]}",
        on_phase=on_phase,
        progress=progress,
    )


def _reached(
    sink: OneSink | Outputs, interval: timedelta, progress: Progress | None
) -> Participant:
    """All who take part, as one; who says how far it is comes last."""
    if progress is None:
        return sink.connect(interval)
    try:
        return reach_all([partial(sink.connect, interval), lambda: progress.participant])
    except BaseException:
        progress.participant.close()
        raise


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
