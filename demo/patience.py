"""How long to wait for something: as long as anything is seen to move.

A machine that is busy with other work does everything, only later. What a fixed limit would end
there was about to succeed; what stands still, does so on every machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from airflow_eos.errors import LocalEnvironmentError

STILL_S = 600.0
"""Nothing of what is looked at has changed for so long: it is given up."""
_MOST = 4.0
_NOTHING_YET = object()


def slowness() -> float:
    """By how much this machine is slower than one that has nothing else to do; at least 1.

    Only for times that Airflow or the broker must be told beforehand, which so are at most four
    times as long.
    """
    waiting, *_ = os.getloadavg()
    return min(max(1.0, waiting / (os.cpu_count() or 1)), _MOST)


class Patience:
    """Ends with an error once nothing has moved for a while.

    Args:
        what: is waited for, in a sentence that begins with "waiting for".
        still_s: without a move, it is given up.
        clock: seconds that only grow.
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
        """For how long nothing has moved."""
        return self._clock() - self._moved_at

    def see(self, sign: object) -> None:
        """Take a look: another ``sign`` than the last one is a move.

        Raises:
            LocalEnvironmentError: it has been the same for too long.
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
