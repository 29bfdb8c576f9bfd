"""Is a driver still running this pipeline? Seen by the reader's own clock: yes, no, or not known.

What a heartbeat and a file say of the time is the driver's clock and the store's; those of two
machines differ. So nothing is compared with them: a driver lives whose heartbeat, or progress, was
seen to change between two looks, and is dead once it was seen to stand still for three of its
intervals. One look alone cannot tell, unless the driver has said itself that it ended.

Evidence for people, sensors and the refusal of recovery. Nothing here is needed for correctness:
a live pipeline that is recovered all the same loses its running attempt and never its rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_eos.checkpoint.heartbeat import ENDED, read_heartbeat
from airflow_eos.checkpoint.spark_log import SparkLog
from airflow_eos.checkpoint.terms import newest_term

if TYPE_CHECKING:
    from airflow_eos.checkpoint.heartbeat import Heartbeat
    from airflow_eos.checkpoint.store import CheckpointStore

MISSED_BEATS = 3
"""A driver that has not beaten for this many of its own intervals is taken for dead."""

UNTOLD_INTERVAL_S = 2.0
"""How often a driver is taken to beat that has not told yet."""

_LOOK_S = 0.5
_RECENT_S = 60.0


@dataclass(frozen=True, slots=True)
class Sign:
    """What changes while a driver runs: its heartbeat, the newest term, Spark's newest files."""

    heartbeat: Heartbeat | None
    term: int
    planned: int | None = None
    committed: int | None = None

    @property
    def current(self) -> Heartbeat | None:
        """The heartbeat, if it is the newest driver's: a former one may go on beating."""
        beat = self.heartbeat
        return beat if beat is None or beat.term is None or beat.term >= self.term else None

    @property
    def is_over(self) -> bool:
        """Whether one look tells that nobody runs: none ever has, or the newest says it ended.

        A batch that is planned where no driver of ours has left a trace is another program's.
        """
        if self.heartbeat is None:
            return self.term == 0 and self.planned is None
        return self.current is not None and self.current.phase in ENDED

    def is_as(self, other: Sign | None) -> bool:
        """Whether nothing has changed since that the newest driver would change."""
        return other is not None and self.own == other.own

    @property
    def own(self) -> tuple[object, ...]:
        """What of it is the newest driver's."""
        return self.current, self.term, self.planned, self.committed

    @property
    def silent_after_s(self) -> float:
        """How long it must be seen to stand still."""
        beat = self.heartbeat
        return MISSED_BEATS * (beat.interval_ms / 1000 if beat else UNTOLD_INTERVAL_S)


def read_sign(store: CheckpointStore) -> Sign:
    """Look once.

    Raises:
        StoreError: no answer, which says nothing of the driver.
        CheckpointFormatError: the heartbeat is foreign, or of a newer release.
    """
    log = SparkLog(store)
    planned, committed = log.newest("offsets"), log.newest("commits")
    return Sign(
        heartbeat=read_heartbeat(store),
        term=newest_term(store),
        planned=int(planned.name) if planned else None,
        committed=int(committed.name) if committed else None,
    )


class LifeWatch:
    """Holds looks at one checkpoint against those before.

    Args:
        clock: seconds; need not be a time of day.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: Sign | None = None
        self._looked_at = 0.0
        self._signs: tuple[str, ...] = ()
        self.silent_s = 0.0
        """How long it was seen to stand still."""

    def hold(self, sign: Sign) -> tuple[str, ...] | None:
        """Why the pipeline is alive, a sentence each; empty: it is not; None: not known yet."""
        now, last = self._clock(), self._last
        gap_s, self._last, self._looked_at = now - self._looked_at, sign, now
        if sign.is_over:
            self._signs, self.silent_s = _changes(last, sign), 0.0
            return self._signs
        if last is None:
            return None
        if not sign.is_as(last):
            # What changed at some time of a long pause says little of now.
            recent = gap_s <= max(_RECENT_S, sign.silent_after_s)
            self._signs, self.silent_s = _changes(last, sign) if recent else (), 0.0
            return self._signs or None
        # Who slept himself has not seen the driver be silent meanwhile.
        self.silent_s += min(gap_s, sign.silent_after_s / MISSED_BEATS)
        if self.silent_s >= sign.silent_after_s:
            self._signs = ()
            return ()
        return self._signs or None


_FOUND_SILENT: dict[str, Sign] = {}
"""By location: what this process has seen to stand still for long enough. As long as it is still
the same, nobody need wait again."""


def signs_of_life(
    store: CheckpointStore,
    *,
    within_s: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[str, ...] | None:
    """Look until it shows whether the pipeline is alive: why, a sentence each; empty: it is not.

    Where it is alive that takes one of its intervals, where it is dead three.

    Args:
        store: the checkpoint.
        within_s: None is returned where it has not shown by then; without it, it always shows.
        sleep: for so many seconds.
        clock: seconds.
    """
    watch, until = LifeWatch(clock), None if within_s is None else clock() + within_s
    while True:
        sign = read_sign(store)
        signs = () if sign.is_as(_FOUND_SILENT.get(store.location)) else watch.hold(sign)
        if signs == ():
            _FOUND_SILENT[store.location] = sign
        if signs is not None or (until is not None and clock() >= until):
            return signs
        sleep(max(_LOOK_S, sign.silent_after_s / (4 * MISSED_BEATS)))  # a store bills each look


def _changes(last: Sign | None, sign: Sign) -> tuple[str, ...]:
    """What was seen to change that only a driver changes."""
    if last is None:
        return ()
    beat, signs = sign.current, []
    if beat is not None and beat != last.current and beat.phase not in ENDED:
        signs.append(
            f"driver {beat.application_id} (process {beat.pid} on {beat.host}) gave a heartbeat "
            f"while it was looked at, phase {beat.phase!r}"
        )
    if sign.term > last.term and last.term:
        signs.append(f"a driver took term {sign.term} while it was looked at")
    for what, batch, before in (
        ("commits", sign.committed, last.committed),
        ("offsets", sign.planned, last.planned),
    ):
        if batch is not None and batch != before:
            signs.append(f"{what}/{batch} was written while it was looked at")
    return tuple(signs)
