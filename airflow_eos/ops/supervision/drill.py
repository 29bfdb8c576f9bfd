"""A drill: end a driver that is at work, and measure how long until its successor commits.

Nothing here brings the app back: that is what is measured. The task that runs the app restarts it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from airflow_eos.core.checkpoint import CheckpointStore, Heartbeat, read_heartbeat
from airflow_eos.core.checkpoint.heartbeat import ENDED
from airflow_eos.core.checkpoint.progress import read_state
from airflow_eos.errors import RecoveryError

log = logging.getLogger(__name__)

_LIVES_ON = 2
"""The number of intervals after the kill from which a driver that still beats was not ended."""


@dataclass(frozen=True, slots=True)
class DrillResult:
    """The result of a drill; ``seconds`` from the kill to the first commit of the successor."""

    driver: str
    killed: str
    successor: str
    batch: int
    seconds: float

    def as_json(self, limit_s: float) -> dict[str, Any]:
        """Return the result for JSON, with whether recovery was in time."""
        in_time = {"limit_s": limit_s, "ok": self.seconds <= limit_s}
        return {**asdict(self), "seconds": round(self.seconds, 1), **in_time}


@dataclass(frozen=True, kw_only=True)
class Drill:
    """A drill on one scratch pipeline.

    Args:
        is_ours: whether the driver of a heartbeat may be ended; no other driver ever is.
        first_batch_within_s: time for the app to start and commit.
        recovered_within_s: time for its successor to commit; then the drill gives up.
        kill: ends the driver of a heartbeat, and returns what was done.
    """

    store: CheckpointStore
    is_ours: Callable[[Heartbeat], bool]
    feed: Callable[[], None]
    first_batch_within_s: float
    recovered_within_s: float
    kill: Callable[[Heartbeat], str]
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    poll_s: float = 0.5

    def run(self) -> DrillResult:
        """Wait for a commit of our driver, end the driver, and wait for its successor's commit.

        Raises:
            RecoveryError: no driver of ours was at work, it was not ended, or no successor has
                committed in time.
        """
        before = self._committed()
        self.feed()
        victim = self._until(
            self.first_batch_within_s,
            lambda: self._at_work(before),
            "No driver of this run has committed a batch",
        )
        self.feed()  # else the successor might have no rows to commit
        begun = self.clock()
        killed = self.kill(victim)
        log.info("Driver %s: %s", victim.application_id, killed)
        last, ended = self._committed(), self._last_beat_of(victim)
        successor = self._until(
            self.recovered_within_s,
            lambda: self._replaced(ended, last, killed),
            f"{killed}, and no other driver has committed a batch since",
        )
        return DrillResult(
            driver=victim.application_id,
            killed=killed,
            successor=successor.application_id,
            batch=self._committed(),
            seconds=self.clock() - begun,
        )

    def _committed(self) -> int:
        newest = read_state(self.store).latest_commit
        return -1 if newest is None else newest

    def _at_work(self, before: int) -> Heartbeat | None:
        beat = read_heartbeat(self.store)
        if beat is None or beat.phase in ENDED or not self.is_ours(beat):
            return None
        return beat if self._committed() > before else None

    def _last_beat_of(self, victim: Heartbeat) -> Heartbeat:
        """Return its newest heartbeat: it beat on while it was fed, and until it was ended."""
        beat = read_heartbeat(self.store)
        if beat is None or beat.application_id != victim.application_id:
            return victim
        return beat

    def _replaced(self, victim: Heartbeat, last: int, killed: str) -> Heartbeat | None:
        beat = read_heartbeat(self.store)
        if beat is None:
            return None
        if beat.application_id == victim.application_id:
            if beat.beat_at_ms > victim.beat_at_ms + _LIVES_ON * victim.interval_ms:
                raise RecoveryError(
                    f"Driver {victim.application_id} lives on: {killed}. The drill must be able to "
                    "end it: run this task on the driver's machine (a queue of its own), or the "
                    "app in deploy mode cluster."
                )
            return None
        return beat if self._committed() > last else None

    def _until(
        self, within_s: float, look: Callable[[], Heartbeat | None], missing: str
    ) -> Heartbeat:
        until = self.clock() + within_s
        while (found := look()) is None:
            if self.clock() >= until:
                raise RecoveryError(
                    f"{missing}, within {within_s:g} s. Look into the log of the task that runs "
                    "the app."
                )
            self.sleep(self.poll_s)
        return found
