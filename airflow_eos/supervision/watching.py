"""Watch the app of a try until it has ended, or until somebody else can watch it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_eos.supervision.ending import ended

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_eos.checkpoint import Heartbeat
    from airflow_eos.supervision.app import App, Rules
    from airflow_eos.supervision.ending import Ended, Process
    from airflow_eos.supervision.pulse import Pulse

log = logging.getLogger(__name__)

_POLL_S = 0.5
LOOK_S = 2.0
CHILD_LOOK_S = 5.0
"""How often the heartbeat of an app is looked at whose process is at hand anyway."""


class Watcher:
    """Looks at the heartbeat of an app, and at its process where that is ours.

    Args:
        pulse: what looks.
        rules: of the try.
        met: called with the first heartbeat of each app that is watched; what it raises is logged.
        still_wanted: raises where the try was stopped; told what the app's own process says.
        sleep, clock: seconds.
    """

    def __init__(
        self,
        pulse: Pulse,
        rules: Rules,
        *,
        met: Callable[[Heartbeat], None],
        still_wanted: Callable[[Process | None], None],
        sleep: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        self._pulse, self._rules, self._met = pulse, rules, met
        self._still_wanted, self._sleep, self._clock = still_wanted, sleep, clock

    def until_ended(self, app: App) -> Ended | None:
        """Wait for the end of the app, or, where it is handed over, until it was seen to live.

        A heartbeat alone does not tell: a driver that is dead has left one, and whoever watches it
        next would count its silence anew.
        """
        looked_s, seen, met = 0.0, None, False
        while True:
            known = app.known  # before the look: after an end only a later look counts
            busy = known is not None and known.running
            self._still_wanted(known)
            every_s = LOOK_S if self._rules.hand_over or not busy else CHILD_LOOK_S
            if not busy or self._clock() - looked_s >= every_s:
                looked_s, seen = self._clock(), self._pulse.look_if_it_answers(refused=not busy)
                if seen is None:  # so nobody can tell whether it has begun to beat
                    app.since_s = looked_s
            if seen is not None:
                mine = seen.current if seen.is_of(app.submission) else None
                if mine is not None and busy:
                    app.since_s = self._clock()
                if mine is not None and not met:
                    met = True
                    self._tell(mine)
                if self._rules.hand_over and mine is not None and seen.living is not None:
                    return None
                since_s = self._clock() - app.since_s
                how = ended(seen, app.submission, known, self._rules.patience, since_s)
                if how is not None:
                    return how
            self._sleep(_POLL_S if busy else LOOK_S)

    def _tell(self, mine: Heartbeat) -> None:
        try:
            self._met(mine)
        except Exception:  # Airflow's API may be away, which is nothing to end an app for
            log.exception("Nobody was told of the app")
