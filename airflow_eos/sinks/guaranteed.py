"""What a query does with each batch, by its guarantee: refuse, take the term, recover, begin."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from airflow_eos.checkpoint import CheckpointStore, DecisionLog
from airflow_eos.checkpoint.decisions import PerishableRows
from airflow_eos.checkpoint.mending import damage
from airflow_eos.checkpoint.rulings import read_acceptance, read_rulings
from airflow_eos.closing import closed_on_error
from airflow_eos.figures import observed_decisions, observed_participant
from airflow_eos.protocol.group import reach_all
from airflow_eos.sinks.at_least_once import AtLeastOnceBatch
from airflow_eos.sinks.at_most_once import AtMostOnceBatch
from airflow_eos.sinks.authority import Authority, Evaluation
from airflow_eos.sinks.changing import (
    require_never_exact,
    require_no_group,
    require_not_spent,
    require_nothing_promised,
    take_turn,
)
from airflow_eos.sinks.governed import retained_batches
from airflow_eos.sinks.heartbeat import HeartbeatWriter
from airflow_eos.sinks.inheriting import say_drained
from airflow_eos.sinks.one import OneSink
from airflow_eos.sinks.outputs import Outputs
from airflow_eos.sinks.planned import PlannedSink
from airflow_eos.sinks.query import ExactlyOnceBatch
from airflow_eos.sinks.replay import Reading, promise_in_flight
from airflow_eos.sinks.spark_logs import warn_where_two_can_plan
from airflow_eos.sinks.spent import Marks, is_spent
from airflow_eos.sinks.takeover import take_over
from airflow_eos.sinks.wanted import require_wanted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_eos.checkpoint import Phase
    from airflow_eos.protocol.participant import Participant
    from airflow_eos.sinks.port import BatchSink, Progress, ProgressPlace


def guaranteed(
    spark: SparkSession,
    sink: OneSink | Outputs,
    store: CheckpointStore,
    governed: Callable[[BatchSink], BatchSink],
    interval: timedelta,
    heartbeat: HeartbeatWriter,
    evaluation: Evaluation,
    resources: ExitStack,
    consumer_group: ProgressPlace | None = None,
    reading: Reading | None = None,
) -> ExactlyOnceBatch | AtLeastOnceBatch | AtMostOnceBatch:
    """Refuse what cannot work; then take the term, which stops whoever runs now; then recover."""
    if sink.guarantee != "exactly_once":
        warn_where_two_can_plan(spark, store, sink.guarantee)
    damage(
        store, DecisionLog(store), starting=True
    )  # what is lost for good is refused before the term
    retained = retained_batches(spark)
    driver = f"driver {spark.sparkContext.applicationId} on {socket.gethostname()}:{os.getpid()}"
    if sink.guarantee == "at_least_once":
        return _at_least_once(sink, store, governed, driver, retained, heartbeat)
    if sink.guarantee == "at_most_once":
        return _at_most_once(sink, store, governed, driver, retained, heartbeat)
    progress = consumer_group.opened(store) if consumer_group is not None else None
    participant = resources.enter_context(closing(_reached(sink, interval, progress)))
    if progress is not None:
        resources.callback(progress.close)
    store.check_create_if_absent()
    require_not_spent(store)
    decisions = observed_decisions(store, heartbeat.observer)
    require_wanted(store)
    tenure, offsets = take_over(
        store, decisions, participant, driver=driver, on_term=heartbeat.start, progress=progress
    )
    # Again: a driver of another guarantee that had not seen our term may have begun a batch.
    require_not_spent(store)
    if progress is not None:
        heartbeat.before_stopped = partial(say_drained, tenure, decisions, participant, progress)

    kept = PerishableRows(store, sink.keeping)

    def on_phase(batch_id: int, phase: Phase) -> None:
        heartbeat.mark(batch_id, phase)
        if phase == "waiting":
            decisions.prune(batch_id - retained)
            kept.prune(batch_id)

    return ExactlyOnceBatch(
        governed(sink if promise_in_flight(store) else PlannedSink(sink)),
        observed_participant(participant, heartbeat.observer),
        decisions,
        Authority(tenure, offsets, participant, evaluated_at=evaluation.at),
        rulings=partial(read_rulings, store),
        accepted=partial(read_acceptance, store),
        driver=f"{driver} run {uuid.uuid4().hex[:8]}",
        on_phase=on_phase,
        progress=progress,
        kept=kept,
        reading=reading,
    )


def _reached(
    sink: OneSink | Outputs, interval: timedelta, progress: Progress | None
) -> Participant:
    """All who take part, as one; who says how far it is comes last."""
    if progress is None:
        return sink.connect(interval)
    with closed_on_error(progress.participant) as last:
        return reach_all([partial(sink.connect, interval), lambda: last])


def _at_least_once(
    sink: OneSink | Outputs,
    store: CheckpointStore,
    governed: Callable[[BatchSink], BatchSink],
    driver: str,
    retained: int,
    heartbeat: HeartbeatWriter,
) -> AtLeastOnceBatch:
    require_no_group(store)
    require_nothing_promised(store)
    require_wanted(store)
    term = take_turn(store, driver=driver).term.number
    require_no_group(store)  # both again: one that had not seen our term may have come between
    require_nothing_promised(store)
    heartbeat.start(term)
    return AtLeastOnceBatch(
        governed(PlannedSink(sink)),
        Marks(store),
        term=term,
        retained=retained,
        on_phase=heartbeat.mark,
    )


def _at_most_once(
    sink: OneSink | Outputs,
    store: CheckpointStore,
    governed: Callable[[BatchSink], BatchSink],
    driver: str,
    retained: int,
    heartbeat: HeartbeatWriter,
) -> AtMostOnceBatch:
    store.check_create_if_absent()
    require_never_exact(store)
    require_wanted(store)
    tenure = take_turn(store, driver=driver)
    require_never_exact(store)  # again: one that had not seen our term may have come between
    heartbeat.start(tenure.term.number)
    return AtMostOnceBatch(
        governed(sink if is_spent(store) else PlannedSink(sink)),
        sink.marks or Marks(store),
        tenure,
        retained=retained,
        on_phase=heartbeat.mark,
    )
