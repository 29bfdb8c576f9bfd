"""Whether a driver lives: one judge, asked by all who wonder.

Its process is looked for on its own machine and in its own container alone; whoever started it may
also have noted its end in ``eos/process-end.json``. Where that says *not known*, it is seen by the
reader's own clock: yes, no, or not known.

Times in a heartbeat and of a file are by the driver's clock and the store's; clocks of two machines
differ. So no clock is compared with them: a driver lives whose heartbeat, or progress, was seen to
change between two looks, and is dead once it was seen to stand still for three of its intervals.
One look alone cannot tell, unless the driver has said itself that it ended.

Evidence for people, sensors and the refusal of recovery. Nothing here is needed for correctness: a
live pipeline that is recovered all the same loses its running attempt and never its rows.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from airflow_eos.core.checkpoint.backend import HEARTBEAT, PROCESS_END
from airflow_eos.core.checkpoint.heartbeat import (
    ENDED,
    Heartbeat,
    beat_interval,
    heard,
    read_heartbeat,
)
from airflow_eos.core.checkpoint.spark_log import SparkLog
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.checkpoint.terms import newest_term
from airflow_eos.core.protocol.decision import Evidence, encode
from airflow_eos.errors import CheckpointFormatError

ProcessState = Literal["gone", "lives here", "not known"]


def process_mark(pid: int) -> str:
    """Return what tells a process from all others: its machine's boot, pid namespace, start time.

    Empty where the system does not tell.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        space = Path("/proc/self/ns/pid").readlink()
        stat = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        state, started = stat[0], stat[19].decode()
    except (OSError, IndexError, UnicodeDecodeError):
        return ""
    return "" if state in (b"Z", b"X") else f"{boot} {space} {started}"


class OfAProcess(Protocol):
    """What a process says of itself: its number, and its :func:`process_mark`."""

    @property
    def pid(self) -> int:
        """Its number on its machine, in its container."""

    @property
    def process(self) -> str:
        """Its mark."""


def process_state(said: OfAProcess) -> ProcessState:
    """Return whether the process that said this is seen from here to be gone, or to live.

    A process of another machine or container is not looked for: its number means another here.
    """
    here = process_mark(os.getpid()).rpartition(" ")[0]
    if not here or said.process.rpartition(" ")[0] != here:
        return "not known"
    try:
        os.kill(said.pid, 0)
        stat = Path(f"/proc/{said.pid}/stat").read_bytes()
    except ProcessLookupError:
        return "gone"
    except OSError:  # another user's, hidden from us, or just gone: the next look tells
        return "not known"
    if process_mark(said.pid) == said.process:
        return "lives here"
    return "gone" if stat else "not known"  # its number is another's, or it has ended


def why_gone(store: CheckpointStore, heartbeat: Heartbeat) -> str | None:
    """Return the evidence that the driver's process is gone; None: it lives, or not known."""
    if process_state(heartbeat) == "gone":
        return "no such process is on this machine any more"
    end = process_end_of(store, heartbeat)
    return None if end is None else end.found


def last_word(
    store: CheckpointStore, heartbeat: Heartbeat | None, *, noted: bool = True
) -> tuple[Heartbeat | None, str | None]:
    """Return the driver's last heartbeat, and the evidence that its process is gone, or None.

    A driver writes its last word before its process ends: so that is read once more.

    Args:
        noted: also read what whoever started it has noted, which is a request more.
    """
    if heartbeat is None or heartbeat.phase in ENDED:
        return heartbeat, None
    gone = why_gone(store, heartbeat) if noted or process_state(heartbeat) == "gone" else None
    if gone is None:
        return heartbeat, None
    again, _ = heard(store)
    return (again or heartbeat), (gone if again == heartbeat else None)


class ProcessEnd(Evidence, frozen=True, kw_only=True):
    """The note that whoever started a driver, by ``submission``, saw its process end."""

    words: ClassVar[tuple[str, ...]] = ("found",)

    submission: str
    found: str


def note_process_end(store: CheckpointStore, submission: str, found: str) -> None:
    """Write, for whoever stands by, that the process of this start was seen to end."""
    store.put(PROCESS_END, encode(ProcessEnd(submission=submission, found=found)))


def process_end_of(store: CheckpointStore, heartbeat: Heartbeat) -> ProcessEnd | None:
    """Return what was noted of the end of this driver's process; None: nobody has seen it."""
    if heartbeat.submission is None:
        return None
    try:
        end = store.read(PROCESS_END, ProcessEnd)
    except CheckpointFormatError:
        return None
    return end if end is not None and end.submission == heartbeat.submission else None


# --- signs of life --------------------------------------------------------------------------------


MISSED_BEATS = 3
"""The number of its own intervals without a change after which a driver, or a standby, is dead."""

UNTOLD_INTERVAL_S = 2.0
"""The interval in which a driver is taken to beat whose heartbeat has not told one yet."""

_LOOK_S = 0.5
_RECENT_S = 60.0


class Standstill:
    """A measure of how long a value was seen to stand still, by the reader's own clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._value: object = None
        self._looked_at: float | None = clock()
        self.seconds = self.gap_s = 0.0
        """For how long it stands still, and the time between the last two looks."""

    def lasts_s(self, value: object) -> float:
        """Return the seconds since the value was first seen; a changed value begins at 0."""
        still, self._value = value == self._value, value
        return self.count(still=still)

    def count(self, *, still: bool, at_most_s: float = math.inf) -> float:
        """Add the time since the look before, ``at_most_s``: a reader that slept has seen less."""
        now, before = self._clock(), self._looked_at
        self._looked_at, self.gap_s = now, 0.0 if before is None else now - before
        self.seconds = self.seconds + min(self.gap_s, at_most_s) if still else 0.0
        return self.seconds

    def forget(self) -> None:
        """Count anew from the next look on."""
        self._looked_at, self.seconds = None, 0.0


def of_the_newest(heartbeat: Heartbeat | None, term: int) -> Heartbeat | None:
    """Return the heartbeat, if it is the newest driver's: a former driver may go on beating."""
    is_former = heartbeat is not None and heartbeat.term is not None and heartbeat.term < term
    return None if is_former else heartbeat


@dataclass(frozen=True, slots=True)
class SignOfLife:
    """One look at all that changes while a driver runs: heartbeat, term, Spark's newest files."""

    heartbeat: Heartbeat | None
    term: int
    planned: int | None = None
    committed: int | None = None
    gone: str | None = None
    """The evidence that the driver's process is gone: see ``checkpoint.liveness``."""
    unread: bytes | None = None
    """What stands in the place of a heartbeat and cannot be read: damaged, or of another release.
    It says nothing, but that somebody lives where it is seen to change."""
    usual_s: float = UNTOLD_INTERVAL_S

    @property
    def current(self) -> Heartbeat | None:
        """The heartbeat, if it is the newest driver's."""
        return of_the_newest(self.heartbeat, self.term)

    @property
    def is_over(self) -> bool:
        """Whether this look alone tells that no driver runs: none ever has, or the newest ended.

        A batch that is planned where no driver of ours has left a trace is another program's.
        """
        if self.heartbeat is None:
            return self.term == 0 and self.planned is None and self.unread is None
        return self.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether the newest driver has said that it ended."""
        return self.current is not None and self.current.phase in ENDED

    def is_as(self, other: SignOfLife | None) -> bool:
        """Whether nothing that the newest driver would change has changed since ``other``."""
        return other is not None and self.own == other.own and not _is_written_anew(other, self)

    @property
    def own(self) -> tuple[object, ...]:
        """The values that only the newest driver changes."""
        return self.current, self.term, self.planned, self.committed

    @property
    def silent_after_s(self) -> float:
        """The seconds without a change after which the driver counts as dead."""
        return MISSED_BEATS * self.interval_s

    @property
    def interval_s(self) -> float:
        """The seconds between two heartbeats of the driver, as the driver wrote them."""
        if self.heartbeat is not None:
            return self.heartbeat.interval_ms / 1000
        return self.usual_s if self.term else UNTOLD_INTERVAL_S


def _is_written_anew(last: SignOfLife, sign: SignOfLife) -> bool:
    return None not in (last.unread, sign.unread) and last.unread != sign.unread


def read_sign(store: CheckpointStore) -> SignOfLife:
    """Look at the checkpoint once for signs of a driver.

    Raises:
        StoreError: no answer, which says nothing of the driver.
        CheckpointFormatError: something foreign stands among terms, or in Spark's log.
    """
    log = SparkLog(store)
    planned, committed = log.newest("offsets"), log.newest("commits")
    beat, unread = None, None
    try:
        beat = read_heartbeat(store)
    except CheckpointFormatError:
        unread = store.get(HEARTBEAT)
    return SignOfLife(
        heartbeat=beat,
        term=newest_term(store),
        planned=int(planned.name) if planned else None,
        committed=int(committed.name) if committed else None,
        unread=unread,
        usual_s=beat_interval(store.location).total_seconds(),
    )


def with_its_end(store: CheckpointStore, sign: SignOfLife) -> SignOfLife:
    """Return a look with the evidence that the newest driver's process is gone, if there is any."""
    if sign.current is None:
        return sign
    beat, gone = last_word(store, sign.current)
    return replace(sign, heartbeat=beat, gone=gone)


class LivenessProbe:
    """A probe of one checkpoint's driver, which compares each look with the one before."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._silence = Standstill(clock)
        self._signs: tuple[str, ...] = ()
        self.seen: SignOfLife | None = None
        """The last look, with the newest heartbeat that could be read."""

    def hold(self, sign: SignOfLife) -> tuple[str, ...] | None:
        """Return why the pipeline is alive, a sentence each; empty: it is not; None: not known."""
        last = self.seen
        if sign.heartbeat is None and last is not None and sign.term == last.term:
            # What is not there, or cannot be read, says nothing: silence is counted on.
            sign = replace(sign, heartbeat=last.heartbeat)
        self.seen = sign
        ended, still = sign.is_over or sign.gone is not None, sign.is_as(last)
        silent_s = self._silence.count(still=still and not ended, at_most_s=sign.interval_s)
        if sign.is_over:
            self._signs = _changes(last, sign)
            return self._signs
        if sign.gone is not None:
            self._signs = ()
            return ()
        if last is None:
            return None
        if not still:
            # A change at some time of a long pause says little of now.
            recent = self._silence.gap_s <= max(_RECENT_S, sign.silent_after_s)
            self._signs = _changes(last, sign) if recent else ()
        elif silent_s >= sign.silent_after_s:
            self._signs = ()
            return ()
        return self._signs or None


_FOUND_SILENT: dict[str, SignOfLife] = {}
"""By location, the look that this process has seen to stand still for long enough. As long as a new
one equals it, nobody need wait again."""


def signs_of_life(
    store: CheckpointStore,
    *,
    within_s: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[str, ...] | None:
    """Look until it is known whether the pipeline is alive; return why, or nothing if it is dead.

    A live pipeline takes one of its intervals, a dead one three, and none where its process is seen
    from here to be gone.

    Args:
        within_s: seconds after which None is returned if it is not known; None: look on.
    """
    watch, until = LivenessProbe(clock), None if within_s is None else clock() + within_s
    while True:
        sign = with_its_end(store, read_sign(store))
        signs = () if sign.is_as(_FOUND_SILENT.get(store.location)) else watch.hold(sign)
        if signs == ():
            _FOUND_SILENT[store.location] = sign
        if signs is not None or (until is not None and clock() >= until):
            return signs
        sleep(max(_LOOK_S, sign.silent_after_s / (4 * MISSED_BEATS)))  # a store bills each look


def _changes(last: SignOfLife | None, sign: SignOfLife) -> tuple[str, ...]:
    """Return what was seen to change between two looks that only a driver changes."""
    if last is None:
        return ()
    beat, signs = sign.current, []
    if beat is not None and beat != last.current and beat.phase not in ENDED:
        signs.append(
            f"driver {beat.application_id} (process {beat.pid} on {beat.host}) gave a heartbeat "
            f"while it was looked at, phase {beat.phase!r}"
        )
    if _is_written_anew(last, sign):
        signs.append(f"{HEARTBEAT}, which cannot be read, was written while it was looked at")
    if sign.term > last.term and last.term:
        signs.append(f"a driver took term {sign.term} while it was looked at")
    for what, batch, before in (
        ("commits", sign.committed, last.committed),
        ("offsets", sign.planned, last.planned),
    ):
        if batch is not None and batch != before:
            signs.append(f"{what}/{batch} was written while it was looked at")
    return tuple(signs)
