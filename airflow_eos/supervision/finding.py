"""Look for the app that lives, until it is known what a try does: take it over, or start one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_eos.checkpoint import drain_of
from airflow_eos.checkpoint.heartbeat import ENDED
from airflow_eos.errors import EosError, ForeignDriverError, StoreError
from airflow_eos.supervision.adoption import Action, Choice, choose
from airflow_eos.supervision.pulse import is_refusal
from airflow_eos.supervision.stopping import ask_to_drain, kill_elsewhere

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_eos.checkpoint import DrainRequest, Heartbeat, StartedBy
    from airflow_eos.supervision.app import Rules
    from airflow_eos.supervision.pulse import Pulse, Seen

log = logging.getLogger(__name__)

_LOOK_S = 1.0
_ENDING_S = 15.0
"""For a driver that was killed to fall silent."""


class Finder:
    """Asks the checkpoint who lives; see ``adoption.py`` for the table.

    Args:
        us: the task that asks.
        pulse: what looks at the checkpoint.
        rules: of the try: how long a driver may take that was asked to drain, and who ends one.
        pause: sleeps; raises where the try was stopped.
        clock: seconds.
    """

    def __init__(
        self,
        us: StartedBy,
        pulse: Pulse,
        rules: Rules,
        pause: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        self._us, self._pulse = us, pulse
        self._drain_s = rules.drain_timeout.total_seconds()
        self._manager = rules.manager
        self._pause, self._clock = pause, clock
        self.found_dead: Heartbeat | None = None
        """The heartbeat of the driver after which an app may be started."""

    def find(self, *, exited: str | None = None) -> str | None:
        """The submission of the app to take over; None: there is none, start one.

        Args:
            exited: the start whose process was seen to end, however young its heartbeat is.

        Raises:
            ForeignDriverError: another task runs it, or a person does.
            StoreError: the store refused. One that does not answer is asked again.
        """
        deadlines: list[float] = []
        told: Choice | None = None
        while True:
            answer = self._asked(exited)
            if answer is not None:
                seen, choice = answer
                if choice.action is Action.REFUSE:
                    raise self._foreign(choice)
                if choice.action is Action.ADOPT and seen.living is not None:
                    log.info("Taking the app over: %s", choice.reason)
                    return seen.living.submission
                waits = choice.action is Action.WAIT
                if choice.action is Action.START or (
                    waits and self._waited_enough(deadlines, seen, choice)
                ):
                    self.found_dead = seen.heartbeat
                    log.info("No app to take over: %s", choice.reason)
                    if not waits:
                        self._end_the_silent(seen.heartbeat, exited)
                    return None
                if told is None or choice.action is not told.action:
                    log.info("%s", choice.reason)
                told = choice
            self._pause(_LOOK_S)

    def another(self, pulse: Pulse, given_up: str | None) -> str | None:
        """The submission of an app of this task that a try may leave behind without knowing it.

        Args:
            pulse: looks once.
            given_up: the start that is known to be over.
        """
        try:
            seen = pulse.look()
        except EosError as error:
            log.warning("Whether an app of this task lives cannot be told: %s", error)
            return None
        beat = seen.current
        if beat is None or seen.is_over or beat == self.found_dead:
            return None
        ours = self._us.is_same_task(beat.started_by) and beat.submission != given_up
        return beat.submission if ours else None

    def _asked(self, exited: str | None) -> tuple[Seen, Choice] | None:
        """A look and what follows from it; None where the store did not answer."""
        try:
            seen = self._pulse.look()
            current = seen.current
            if exited is not None and current is not None and current.submission == exited:
                return seen, Choice(Action.START, "its process has ended")
            return seen, choose(seen, self._us, self._request_to(seen.living))
        except StoreError as error:
            if is_refusal(error):
                raise
            log.warning("The checkpoint did not answer; asking again: %s", error)
            return None

    def _request_to(self, living: Heartbeat | None) -> DrainRequest | None:
        return None if living is None else drain_of(self._pulse.store, living)

    def _waited_enough(self, deadlines: list[float], seen: Seen, choice: Choice) -> bool:
        """Whether a driver that was asked to drain is to be superseded: it could not be ended.

        First it has ``drain_timeout``, then what ends it has a moment.
        """
        now = self._clock()
        if not deadlines:
            deadlines.append(now + self._drain_s)
        if now < deadlines[-1]:
            return False
        living = seen.living
        if living is None or not self._us.is_same_task(living.started_by):
            raise self._foreign(choice)
        if len(deadlines) > 1:
            log.warning("It could not be ended, and is superseded: %s", choice.reason)
            self._ask(living)
            return True
        done = kill_elsewhere(living, self._manager)
        log.warning("It has not drained within %g s: %s", self._drain_s, done)
        deadlines.append(now + _ENDING_S)
        return False

    def _end_the_silent(self, heartbeat: Heartbeat | None, exited: str | None) -> None:
        """Nothing of a driver goes on that is given up; one of this task is killed, too."""
        if heartbeat is None or heartbeat.phase in ENDED or heartbeat.submission == exited:
            return
        self._ask(heartbeat)
        if self._us.is_same_task(heartbeat.started_by):
            done = kill_elsewhere(heartbeat, self._manager)
            log.warning("The driver before this start: %s", done)

    def _ask(self, heartbeat: Heartbeat) -> None:
        """It may only be out of reach: without a term nothing else tells it that it is over."""
        if heartbeat.submission is not None:
            ask_to_drain(self._pulse.store, heartbeat.submission, "given up, and another started")

    def _foreign(self, choice: Choice) -> ForeignDriverError:
        return ForeignDriverError(
            f"{self._pulse.store.location} is already running: {choice.reason}. A second driver "
            "would only take its place. Stop the task that runs it, or `airflow-eos drain` it, "
            "then clear this one."
        )
