"""Recovery for the operators: wait for silence, plan, print the plan, execute."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_eos.core.checkpoint import CheckpointStore, Heartbeat, read_heartbeat, read_pipeline
from airflow_eos.core.checkpoint.liveness import signs_of_life
from airflow_eos.core.checkpoint.progress import read_state
from airflow_eos.core.protocol.participant import Participant
from airflow_eos.core.recovery.execute import (
    ALLOWED_BY_DEFAULT,
    Report,
    execute,
    execute_recovery,
    participant_of,
)
from airflow_eos.core.recovery.facts import gather
from airflow_eos.core.recovery.plan import Action, Plan, make_plan
from airflow_eos.errors import DeliveryError, PipelineAliveError
from airflow_eos.ops.plan_tables import plan_view, report_view
from airflow_eos.ops.supervision.heartbeat_monitor import HeartbeatObservation, read_pulse
from airflow_eos.ops.tables import as_text

if TYPE_CHECKING:
    from airflow_eos.kafka.client.connection import ConnectionPool
    from airflow_eos.kafka.client.settings import KafkaSettings

log = logging.getLogger(__name__)

_LOG_WIDTH = 140


@dataclass(frozen=True)
class Recovery:
    """The recovery of one pipeline: its checkpoint, and how to reach its participants.

    Attributes:
        prefix: prefix of the transactional ids; None: the prefix that the checkpoint names.
        reach: connection settings of the other participants, by name or kind; may hold secrets.
        patience: how long a heartbeat is watched. A driver that beats again meanwhile is alive;
            one that stands still for three of its intervals is recovered then.
        first: a connection to Kafka that is open already; the first recovery takes it over.
    """

    checkpoint: str
    kafka: KafkaSettings
    prefix: str | None = None
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    reach: Mapping[str, Any] | None = field(default=None, repr=False)
    patience: timedelta = timedelta(minutes=1)
    first: ConnectionPool | None = None
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    @cached_property
    def store(self) -> CheckpointStore:
        """The checkpoint, opened once."""
        return CheckpointStore.open(self.checkpoint, storage_options=self.storage_options)

    def wait_for_silence(self) -> None:
        """Return once the pipeline shows no signs of life.

        Raises:
            PipelineAliveError: the driver beat again, or ``patience`` ended; with the evidence.
        """
        within_s = self.patience.total_seconds()
        log.info("Looking whether a driver of %s is alive", self.checkpoint)
        signs = signs_of_life(self.store, within_s=within_s, sleep=self.sleep, clock=self.clock)
        if signs == ():
            return
        if signs is None:
            raise PipelineAliveError(
                f"Whether {self.checkpoint} is running has not shown within {within_s:g} s: its "
                "driver means to beat less often than that. Nothing was done. Set patience to more "
                "than three of its intervals, then try again."
            )
        raise PipelineAliveError(
            f"{self.checkpoint} is already running: {'; '.join(signs)}. A second driver or a "
            "recovery would only take its attempt away. Stop the task that runs it (that "
            "drains it), or wait until it is gone, then try again."
        )

    @property
    def nothing_known(self) -> bool:
        """Whether no prefix is known: none was given, and no driver has claimed the checkpoint."""
        return self.prefix is None and read_pipeline(self.store) is None

    def plan(self) -> Plan:
        """Make the plan and print it to the task's log; does nothing else."""
        with self._reached() as participant:
            return self._planned(participant, look=True)

    def recover(self, *, act: bool = True, force: bool = False) -> Plan:
        """Make the plan, print it and, if ``act``, carry it out, all over the same connections.

        Raises:
            PipelineAliveError: the pipeline shows signs of life and ``force`` is off.
            DecisionNeededError: steps are left that need a person; the others were done.
        """
        with self._reached() as participant:
            plan = self._planned(participant, look=not force)
            if act:
                report = execute(
                    plan, self.store, participant, allow=ALLOWED_BY_DEFAULT, force=force
                )
                _print_report(report)
                report.require_complete()
        return plan

    def execute(
        self, plan: Plan, *, allow: Collection[Action] = ALLOWED_BY_DEFAULT, force: bool = False
    ) -> Report:
        """Carry out a plan, maybe one of another day, and print the result of each step.

        Steps that were not allowed or need a person are left alone; the report says so.

        Raises:
            PipelineAliveError: the pipeline shows signs of life and ``force`` is off.
        """
        report = execute_recovery(
            plan,
            self.kafka,
            reach=self.reach,
            allow=allow,
            force=force,
            storage_options=self.storage_options,
        )
        _print_report(report)
        return report

    def close_unused_connection(self) -> None:
        """Close the connection that the preflight opened, where no recovery has done so."""
        if self.first is not None:
            self.first.close()

    @contextmanager
    def _reached(self) -> Iterator[Participant]:
        """Connect to all participants; to Kafka over the first connection, while there is one."""
        with ExitStack() as until_done:
            reach = self.reach
            if self.first is not None and not self.first.closed:
                until_done.callback(self.first.close)  # also where its cluster is not used
                reach = {"kafka": self.first, **(reach or {})}
            participant = participant_of(self.store, self.kafka, reach=reach, prefix=self.prefix)
            yield until_done.enter_context(closing(participant))

    def _planned(self, participant: Participant, *, look: bool) -> Plan:
        plan = make_plan(gather(self.store, participant, look=look))
        print_plan(plan)
        return plan


def recover_before_start(
    recovery: Recovery, *, known_dead: Callable[[Heartbeat | None], bool], act: bool
) -> None:
    """End the transactions that a former driver left open; refuse where another driver runs.

    Args:
        known_dead: tells whether the driver of a heartbeat was seen to end, or to be silent.
        act: False prints the plan only.

    Raises:
        PipelineAliveError: another driver is running.
        DecisionNeededError: steps are left that need a person; the others were done.
    """
    try:
        dead = known_dead(read_heartbeat(recovery.store))
        if not dead:
            recovery.wait_for_silence()
        if recovery.nothing_known:
            log.info("No driver has claimed %s yet: nothing to recover", recovery.checkpoint)
            return
        recovery.recover(act=act, force=dead)
    finally:
        recovery.close_unused_connection()


def leave_nothing_open(recovery: Recovery, submission: str) -> tuple[int | None, bool]:
    """Recover what is open after an app that says it has finished.

    Where another driver has come since, the open transactions are its own, and are only listed.

    Returns:
        The last committed batch, and whether the app was the last: no driver has come since.

    Raises:
        DeliveryError: promised rows are still missing; the next start replays them.
    """
    term, heartbeat, _ = read_pulse(recovery.store)
    is_last = HeartbeatObservation(heartbeat, term).of(submission) is not None
    if not recovery.nothing_known:
        plan = recovery.recover(act=is_last, force=is_last)
        if is_last and plan.count(Action.REPLAY):
            raise DeliveryError(
                f"The app said that it stopped in order, but batch {plan.in_flight} still owes "
                "rows that were promised. Start it again: it replays them."
            )
    return read_state(recovery.store).latest_commit, is_last


def print_plan(plan: Plan) -> None:
    """Put the plan into the task's log, as a table to decide from; a plan holds no secrets."""
    log.info("Recovery plan\n%s", as_text(plan_view(plan), _LOG_WIDTH))


def _print_report(report: Report) -> None:
    if report.results:
        log.info("Recovery\n%s", as_text(report_view(report), _LOG_WIDTH))
