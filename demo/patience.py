"""Waiting without a fixed limit: a wait fails only once nothing changes any more.

A machine that is busy with other work does everything, only later: a fixed limit would end work
there that was about to succeed; work that stands still does so on every machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from airflow_eos.errors import LocalEnvironmentError

STILL_S = 600.0
"""Seconds without a change after which a wait is given up."""
_MOST = 4.0
_NOTHING_YET = object()


def slowness() -> float:
    """Return by what factor this machine is slower than an idle one; 1 to 4.

    Only for timeouts that Airflow or the broker must be told beforehand, which so are at most four
    times as long.
    """
    waiting, *_ = os.getloadavg()
    return min(max(1.0, waiting / (os.cpu_count() or 1)), _MOST)


class Patience:
    """Ends a wait with an error once nothing has changed for a while.

    Args:
        what: the thing waited for, to follow the words "waiting for".
        still_s: seconds without a change after which the wait is given up.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        what: str,
        *,
        still_s: float = STILL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._still_s = still_s
        self._clock = clock
        self._moved_at = clock()
        self._seen: object = _NOTHING_YET

    @property
    def still_s(self) -> float:
        """Seconds since the last change."""
        return self._clock() - self._moved_at

    def see(self, sign: object) -> None:
        """Record a ``sign`` of progress: one that differs from the last one is a change.

        Raises:
            LocalEnvironmentError: the sign has been the same for too long.
        """
        if self._seen is _NOTHING_YET:
            self._seen = sign
        elif sign != self._seen:
            self._seen, self._moved_at = sign, self._clock()
        elif self.still_s > self._still_s:
            raise LocalEnvironmentError(
                f"Nothing has moved for {self._still_s / 60:g} minutes, waiting for {self._what}: "
                "the demo is given up, and what it started is ended. End other programs, and try "
                "again."
            )
