"""A heartbeat, and what a standby says; a test tells what it is about."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from airflow_eos.core.checkpoint import CheckpointStore, Heartbeat, write_heartbeat
from airflow_eos.core.checkpoint.heartbeat import Phase
from airflow_eos.core.checkpoint.liveness import process_mark
from airflow_eos.core.checkpoint.standby import Standby


def heartbeat(phase: Phase = "waiting", **said: Any) -> Heartbeat:
    """The beat of a driver ``app-1`` in batch 7; its times are 0 where nothing else is said."""
    of_a_driver = {
        "application_id": "app-1",
        "host": "node-1",
        "pid": 1,
        "batch_id": 7,
        "beat_at_ms": 0,
        "interval_ms": 2000,
        "trigger_ms": 1000,
        "started_at_ms": 0,
    }
    return Heartbeat(phase=phase, **{**of_a_driver, **said})


def standby(**said: Any) -> Standby:
    """What ``app-2`` says that stands by behind the driver of term 1, nobody having started it."""
    of_a_standby = {
        "name": "s2",
        "started_by": None,
        "application_id": "app-2",
        "host": "h",
        "pid": 1,
        "behind": 1,
        "beat": 0,
        "interval_ms": 700,
    }
    return Standby(**{**of_a_standby, **said})


def of_a_killed_process() -> dict[str, Any]:
    """What a driver says of its process, that was killed on this machine since."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    said = {"pid": process.pid, "process": process_mark(process.pid)}
    process.kill()
    process.wait()
    return said


@contextmanager
def beating(store: CheckpointStore, first: Heartbeat, *, every_s: float = 0.02) -> Iterator[None]:
    """A driver that lives: its heartbeat goes on by the clock that the first one has."""

    def beat(ended: threading.Event) -> None:
        n = 0
        while not ended.wait(every_s):
            n += 1
            write_heartbeat(store, msgspec.structs.replace(first, beat_at_ms=first.beat_at_ms + n))

    write_heartbeat(store, first)
    with beside(beat):
        yield


@contextmanager
def beside(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Work on a thread of its own, until the block ends: then its event is set."""
    ended = threading.Event()
    thread = threading.Thread(target=work, args=(ended,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
