"""What happened to a pipeline, ``eos/history/``: starts, ends and recoveries, for people.

A driver's last word and a request to drain are gone once the next driver begins: that one notes
them. One small object an event, and the newest alone are kept. Evidence: what cannot be noted is
logged, and nothing waits for it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from typing import ClassVar, Literal

from airflow_eos.core.checkpoint.backend import HISTORY, StoredObject
from airflow_eos.core.checkpoint.drain import BY_STANDBY
from airflow_eos.core.checkpoint.heartbeat import Heartbeat, MomentMs
from airflow_eos.core.checkpoint.liveness import process_end_of
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.log import Log
from airflow_eos.core.protocol.decision import Evidence, Upgrades, added, encode
from airflow_eos.errors import CheckpointError, CheckpointFormatError

log = Log(__name__)

KEPT = 50
"""The number of newest events that are kept, and shown."""

What = Literal[
    "started",
    "took over",
    "finished",
    "drained",
    "handed over",
    "failed",
    "superseded",
    "silent",
    "recovered",
]


class Happened(Evidence, frozen=True, kw_only=True):
    """An event of a pipeline, at ``at_ms`` by the clock of who noted it.

    ``who`` is the driver, or who recovered; ``why`` who started it, or how it ended. ``term`` is
    the driver's; ``app``, ``release`` and ``spark_ui`` are the app's file, our release and the
    address of Spark's UI where one started; empty: not known, or Spark shows none.
    """

    words: ClassVar[tuple[str, ...]] = ("who", "why", "app", "release", "spark_ui")
    upgrades: ClassVar[Upgrades] = {1: lambda fields: added(fields, spark_ui="")}

    format_version: int = 2
    what: What
    at_ms: MomentMs
    who: str
    why: str
    term: int | None = None
    app: str = ""
    release: str = ""
    spark_ui: str = ""


def started(
    heartbeat: Heartbeat, *, stood_by: bool, app: str, release: str, spark_ui: str = ""
) -> Happened:
    """Return the start of the driver of this heartbeat; ``stood_by``: it waited for its turn."""
    by = heartbeat.started_by
    return Happened(
        what="took over" if stood_by else "started",
        at_ms=heartbeat.started_at_ms if not stood_by else heartbeat.beat_at_ms,
        who=_driver(heartbeat),
        why="by hand" if by is None else f"by {by}",
        term=heartbeat.term,
        app=app,
        release=release,
        spark_ui=spark_ui,
    )


def ended(heartbeat: Heartbeat, store: CheckpointStore) -> Happened:
    """Return how the driver of this heartbeat ended, whether or not it had a last word."""
    end, why = heartbeat.end, heartbeat.reason or ""
    what: What
    if end is None:
        noted = process_end_of(store, heartbeat)
        said = f"no last word, in phase {heartbeat.phase!r}"
        what, why = "silent", said if noted is None else f"{said}: {noted.found}"
    elif end == "drained" and heartbeat.drained_by == BY_STANDBY:
        what = "handed over"
    else:
        what = end
    return Happened(
        what=what,
        at_ms=heartbeat.beat_at_ms,
        who=_driver(heartbeat),
        why=why,
        term=heartbeat.term,
    )


def recovered(who: str, why: str) -> Happened:
    """Return that ``who`` has just recovered the pipeline, and what was done."""
    return Happened(what="recovered", at_ms=time.time_ns() // 1_000_000, who=who, why=why)


def _driver(heartbeat: Heartbeat) -> str:
    return f"{heartbeat.application_id} on {heartbeat.host}"


def note(store: CheckpointStore, events: Iterable[Happened]) -> None:
    """Note the events, and remove the oldest; where that fails, say so in the log alone."""
    try:
        for each in events:
            store.put(f"{HISTORY}/{each.at_ms:015}-{uuid.uuid4().hex[:8]}.json", encode(each))
        store.delete(each.path for each in _listed(store)[:-KEPT])
    except CheckpointError as error:
        log.warning("history_not_noted", error=str(error))


class PastEvents:
    """Reads the events of one checkpoint; none is read twice, as none ever changes."""

    def __init__(self) -> None:
        self._read: dict[StoredObject, Happened | None] = {}

    def events(self, store: CheckpointStore) -> tuple[Happened, ...]:
        """Return the newest events, the oldest first; what is damaged is left out."""
        listed = _listed(store)[-KEPT:]
        self._read = {each: self._read.get(each) or _event(store, each.path) for each in listed}
        return tuple(filter(None, self._read.values()))


def _listed(store: CheckpointStore) -> list[StoredObject]:
    return sorted(store.list(HISTORY), key=lambda each: each.name)


def _event(store: CheckpointStore, path: str) -> Happened | None:
    try:
        return store.read(path, Happened)
    except CheckpointFormatError as error:
        log.warning("event_damaged", path=path, error=str(error))
        return None
