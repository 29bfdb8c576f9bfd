"""Whether the process of a driver is gone: one judge, asked by all who wonder whether it lives.

A process is looked for on its own machine and in its own container alone; whoever started it may
also have noted its end in ``eos/process-end.json``. Evidence, as a heartbeat is: silence tells the
same later, and where this says *not known* nothing else does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from airflow_eos.core.checkpoint.backend import PROCESS_END
from airflow_eos.core.checkpoint.heartbeat import ENDED, heard
from airflow_eos.core.protocol.decision import Evidence, encode
from airflow_eos.errors import CheckpointFormatError

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint.heartbeat import Heartbeat
    from airflow_eos.core.checkpoint.store import CheckpointStore

ProcessState = Literal["gone", "lives here", "not known"]


class Standstill:
    """A measure of how long a value has been the same, by the reader's own clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._value: object = None
        self._since_s = clock()

    def lasts_s(self, value: object) -> float:
        """Return the seconds since the value was first seen; a changed value begins at 0."""
        if value != self._value:
            self._value, self._since_s = value, self._clock()
        return self._clock() - self._since_s


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


def process_state(heartbeat: Heartbeat) -> ProcessState:
    """Return whether the driver's process is seen from here to be gone, or to live.

    A process of another machine or container is not looked for: its number means another here.
    """
    here = process_mark(os.getpid()).rpartition(" ")[0]
    if not here or heartbeat.process.rpartition(" ")[0] != here:
        return "not known"
    try:
        os.kill(heartbeat.pid, 0)
        stat = Path(f"/proc/{heartbeat.pid}/stat").read_bytes()
    except ProcessLookupError:
        return "gone"
    except OSError:  # another user's, hidden from us, or just gone: the next look tells
        return "not known"
    if process_mark(heartbeat.pid) == heartbeat.process:
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
        store: the checkpoint.
        heartbeat: the last one, just read.
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
