"""Exactly once, as a start asks it: whom it refuses, how it takes over, what its batches are."""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING

from airflow_eos.core.checkpoint.cuts import CutWriter
from airflow_eos.core.checkpoint.decisions import PerishableRows
from airflow_eos.core.checkpoint.inputs import BatchInput
from airflow_eos.core.checkpoint.rulings import read_acceptance, read_rulings
from airflow_eos.core.checkpoint.snapshot import unknown_beginning
from airflow_eos.core.delivery.batch import Authority, ExactlyOnceBatch
from airflow_eos.core.delivery.batch_timeout import retained_batches
from airflow_eos.core.delivery.observed import observed_decisions, observed_participant
from airflow_eos.core.delivery.outputs import InPlanSink
from airflow_eos.core.delivery.replay import ReplayChecks, promise_in_flight
from airflow_eos.core.delivery.spark_session import stateful
from airflow_eos.core.delivery.spill import tell_pipeline
from airflow_eos.core.delivery.start_option import GuaranteeOption
from airflow_eos.core.delivery.takeover import require_admitted, take_over
from airflow_eos.core.delivery.weaker_guarantees import may_be_visible
from airflow_eos.errors import OwnershipError

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint import CheckpointStore, Phase, Tenure
    from airflow_eos.core.delivery.committed_offsets import CommittedOffsets
    from airflow_eos.core.delivery.input_check import InputCheck
    from airflow_eos.core.delivery.port import BatchSink
    from airflow_eos.core.delivery.start_option import Start
    from airflow_eos.core.delivery.takeover import Admitted


class ExactlyOnce(GuaranteeOption):
    """Work that is prepared, and a decision that names it."""

    def __init__(self, checked: InputCheck, offsets: CommittedOffsets) -> None:
        self._input, self._offsets = checked, offsets
        self._admitted: Admitted | None = None
        self._in_plan: InPlanSink | None = None

    def before_term(self, start: Start) -> None:
        """Reach the participants."""
        self._participant = self._offsets.reached(start)

    def refuse(self, store: CheckpointStore) -> None:
        """Refuse to deliver exactly once a batch that may be visible in part.

        Raises:
            OwnershipError: the batch in flight was begun with another guarantee, or nobody knows by
                which driver.
        """
        if (unknown := unknown_beginning(store)) is not None:
            raise unknown
        if may_be_visible(store) and not promise_in_flight(store):
            raise OwnershipError(
                f"{store.location}: the batch in flight was begun with at_most_once or "
                "at_least_once, and some of its rows may be visible; exactly_once would write them "
                "again. Start once more with the guarantee that it had (availableNow will do) "
                "until that batch is over, and change it then; or take a new checkpoint location."
            )

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
        cuts = CutWriter(store, self._participant, tenure.require, retained)

        def on_phase(batch_id: int, phase: Phase) -> None:
            start.heartbeat.enter_phase(batch_id, phase)
            if phase == "preparing":
                tell_pipeline(start.spark, cuts.log.pipeline)
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
            cut=cuts.write,
        )
