"""The guarantees at a start: whom each refuses, how it takes the term, what its batches are."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from airflow_eos.core.checkpoint import DecisionLog
from airflow_eos.core.checkpoint.decisions import PerishableRows
from airflow_eos.core.checkpoint.inputs import BatchInput
from airflow_eos.core.checkpoint.mending import damage, lost_beginning, newest_known
from airflow_eos.core.checkpoint.repartition import require_finished
from airflow_eos.core.checkpoint.rulings import read_acceptance, read_rulings
from airflow_eos.core.delivery.batch import Authority, ExactlyOnceBatch
from airflow_eos.core.delivery.batch_timeout import retained_batches
from airflow_eos.core.delivery.observed import observed_decisions, observed_participant
from airflow_eos.core.delivery.outputs import InPlanSink
from airflow_eos.core.delivery.replay import ReplayChecks, promise_in_flight
from airflow_eos.core.delivery.spark_session import stateful, warn_where_two_can_plan
from airflow_eos.core.delivery.start_option import GuaranteeOption
from airflow_eos.core.delivery.takeover import require_admitted, take_over
from airflow_eos.core.delivery.weaker_guarantees import (
    AtLeastOnceBatch,
    AtMostOnceBatch,
    VisibilityMarkers,
    may_be_visible,
    require_never_exact,
    require_no_group,
    require_not_spent,
    require_nothing_promised,
    take_turn,
)

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint import CheckpointStore, Phase, Tenure
    from airflow_eos.core.delivery.committed_offsets import CommittedOffsets
    from airflow_eos.core.delivery.input_check import InputCheck
    from airflow_eos.core.delivery.port import BatchSink, Guarantee
    from airflow_eos.core.delivery.start_option import Start
    from airflow_eos.core.delivery.takeover import Admitted


def require_readable(store: CheckpointStore) -> None:
    """Refuse what Spark would stumble over, before the term and with every guarantee."""
    decisions = DecisionLog(store)
    damage(store, decisions)
    require_finished(store)
    if (lost := lost_beginning(store, decisions, newest_known(store, decisions))) is not None:
        raise lost


class ExactlyOnce(GuaranteeOption):
    """Prepared work, and a decision that names it.

    Args:
        checked: the input.
        offsets: the consumer group, where there is one.
    """

    def __init__(self, checked: InputCheck, offsets: CommittedOffsets) -> None:
        self._input, self._offsets = checked, offsets
        self._admitted: Admitted | None = None
        self._in_plan: InPlanSink | None = None

    def before_term(self, start: Start) -> None:
        """Reach the participants."""
        require_readable(start.store)
        self._participant = self._offsets.reached(start)

    def refuse(self, store: CheckpointStore) -> None:
        """Refuse a batch that may be visible in part."""
        require_not_spent(store)

    def ask_ahead(self, start: Start) -> None:
        """Ask the gate, and let Spark analyse the plan; only the term tells whether it stays so."""
        self.refuse(start.store)
        progress = self._offsets.progress
        self._admitted = require_admitted(start.store, self._participant, start.driver, progress)
        self._in_plan = InPlanSink.of(start.sink, start.read.frame)

    def take_term(self, start: Start, after: int | None) -> Tenure:
        """Take the pipeline over; see :func:`take_over`."""
        self._decisions = observed_decisions(start.store, start.observer)
        tenure, self._log = take_over(
            start.store,
            self._decisions,
            self._participant,
            driver=start.driver,
            on_term=start.heartbeat.start,
            progress=self._offsets.progress,
            admitted=self._admitted,
            after=after,
            unreadable=self._input.mends,
        )
        return tenure

    def batch(self, start: Start, tenure: Tenure) -> ExactlyOnceBatch:
        """Return the function that prepares, decides and settles."""
        store, decisions = start.store, self._decisions
        kept = PerishableRows(store, start.sink.keeping)
        retained = retained_batches(start.spark)

        def on_phase(batch_id: int, phase: Phase) -> None:
            start.heartbeat.mark(batch_id, phase)
            if phase == "waiting":
                decisions.prune(batch_id - retained)
                kept.prune(batch_id)

        sink: BatchSink = start.sink
        if not promise_in_flight(store):
            sink = self._in_plan or InPlanSink(sink)
        return ExactlyOnceBatch(
            start.wrapped(sink),
            observed_participant(self._participant, start.observer),
            decisions,
            Authority(tenure, self._log, self._participant, evaluated_at=start.plan.at),
            rulings=partial(read_rulings, store),
            accepted=partial(read_acceptance, store),
            driver=f"{start.driver} run {uuid.uuid4().hex[:8]}",
            on_phase=on_phase,
            progress=self._offsets.progress,
            kept=kept,
            reading=ReplayChecks(
                partial(stateful, start.read.frame), partial(self._input.lost, store)
            ),
            reads=BatchInput(store, decisions, start.read.reads, start.plan).promised,
        )


class _AtOnce(GuaranteeOption):
    """Rows that are visible at once: a guarantee without decisions.

    Args:
        checked: the input.
        offsets: of exactly once alone.
    """

    def __init__(self, checked: InputCheck, offsets: CommittedOffsets) -> None:
        del offsets
        self._input = checked

    def before_term(self, start: Start) -> None:
        """Warn where Spark's own log does not keep two drivers apart."""
        warn_where_two_can_plan(start.spark, start.store, start.sink.guarantee)
        require_readable(start.store)


class AtLeastOnce(_AtOnce):
    """Rows that come again where their batch runs again."""

    def prove(self, store: CheckpointStore) -> None:
        """Do nothing: what two drivers write comes twice, which this guarantee allows."""

    def refuse(self, store: CheckpointStore) -> None:
        """Refuse a pipeline with a consumer group, and a promised batch."""
        require_no_group(store)
        require_nothing_promised(store)

    def take_term(self, start: Start, after: int | None) -> Tenure:
        """Take the term, and the attempt that a sleeping driver may be about to decide."""
        del after
        return take_turn(start.store, driver=start.driver, unreadable=self._input.mends)

    def batch(self, start: Start, tenure: Tenure) -> AtLeastOnceBatch:
        """Return the function that marks a batch, and writes it."""
        return AtLeastOnceBatch(
            start.wrapped(InPlanSink(start.sink)),
            VisibilityMarkers(start.store),
            tenure,
            retained=retained_batches(start.spark),
            on_phase=start.heartbeat.mark,
        )


class AtMostOnce(_AtOnce):
    """Rows that never come where some of their batch may have been written before."""

    def refuse(self, store: CheckpointStore) -> None:
        """Refuse a pipeline that delivers exactly once."""
        require_never_exact(store)

    def take_term(self, start: Start, after: int | None) -> Tenure:
        """See :meth:`AtLeastOnce.take_term`."""
        del after
        return take_turn(start.store, driver=start.driver)

    def batch(self, start: Start, tenure: Tenure) -> AtMostOnceBatch:
        """Return the function that marks a batch as spent, and writes it where nobody has."""
        sink, store = start.sink, start.store
        return AtMostOnceBatch(
            start.wrapped(sink if may_be_visible(store) else InPlanSink(sink)),
            sink.marks or VisibilityMarkers(store),
            tenure,
            retained=retained_batches(start.spark),
            on_phase=start.heartbeat.mark,
        )


GUARANTEES: Mapping[Guarantee, type[ExactlyOnce | _AtOnce]] = {
    "exactly_once": ExactlyOnce,
    "at_least_once": AtLeastOnce,
    "at_most_once": AtMostOnce,
}
