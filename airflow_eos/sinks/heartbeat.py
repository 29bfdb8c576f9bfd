"""The driver's heartbeat, which also looks for a request to drain. Evidence, never correctness."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import structlog

from airflow_eos.checkpoint import Heartbeat, drain_requested, write_heartbeat
from airflow_eos.checkpoint.state_size import write_state_size
from airflow_eos.errors import CheckpointError
from airflow_eos.sinks.state_notes import state_size

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from airflow_eos.checkpoint import CheckpointStore
    from airflow_eos.checkpoint.liveness import Phase
    from airflow_eos.checkpoint.state_size import StateSize

log = structlog.get_logger(__name__)

INTERVAL = timedelta(seconds=2)


class HeartbeatWriter:
    """Writes ``eos/driver.json`` every two seconds and looks for ``eos/drain.json``."""

    def __init__(self, store: CheckpointStore, *, application_id: str, trigger: timedelta) -> None:
        self._store = store
        self._application_id = application_id
        self._trigger = trigger
        self._started_at_ms = _now_ms()
        self._batch_id: int | None = None
        self.term: int | None = None
        self._phase: Phase = "starting"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="airflow-eos-heartbeat", daemon=True)
        self.draining = threading.Event()
        self.before_stopped: Callable[[], None] = lambda: None
        """Done by a driver that ends in order, before it says so."""
        self._query: StreamingQuery | None = None
        self._state: StateSize | None = None

    def start(self) -> None:
        """Beat once now, then from a thread."""
        self._beat()
        self._thread.start()

    def mark(self, batch_id: int, phase: Phase) -> None:
        """What the driver is doing; told with the next beat."""
        self._batch_id, self._phase = batch_id, phase

    def follow(self, query: StreamingQuery) -> None:
        """Note from now on how large its state is."""
        self._query = query

    def stop(self, phase: Phase) -> None:
        """Beat for the last time, so that nobody waits for silence to tell."""
        if phase == "stopped":
            self.before_stopped()
        self._phase = phase
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout=INTERVAL.total_seconds())
        self._beat()

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL.total_seconds()):
            self._beat()

    def _beat(self) -> None:
        try:
            write_heartbeat(
                self._store,
                Heartbeat(
                    term=self.term,
                    application_id=self._application_id,
                    host=socket.gethostname(),
                    pid=os.getpid(),
                    batch_id=self._batch_id,
                    phase=self._phase,
                    beat_at_ms=_now_ms(),
                    interval_ms=int(INTERVAL.total_seconds() * 1000),
                    trigger_ms=int(self._trigger.total_seconds() * 1000),
                    started_at_ms=self._started_at_ms,
                ),
            )
            if drain_requested(self._store) is not None:
                self.draining.set()
            self._note_state()
        except CheckpointError as error:
            log.warning("heartbeat_failed", error=str(error))

    def _note_state(self) -> None:
        try:
            size = state_size(self._query.lastProgress) if self._query is not None else None
        except Exception:  # whatever Spark says, the heart goes on beating
            log.exception("state_not_noted")
            return
        if size is not None and size != self._state:
            write_state_size(self._store, size)
            self._state = size


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
