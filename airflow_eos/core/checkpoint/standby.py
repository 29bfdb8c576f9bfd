"""Drivers that stand by: ``eos/standbys/<name>.json``, written by each of them for itself.

Evidence, as a heartbeat is: a standby that is wrong takes a term, and terms and decisions see to it
that nobody loses a row by that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, ClassVar, Literal

import msgspec

from airflow_eos.core.checkpoint.backend import DRIVERS, STANDBYS, standby_path
from airflow_eos.core.checkpoint.drain import (
    BY_STANDBY,
    DRAINS_KEPT,
    NOT_FOR_GOOD,
    DrainRequest,
    request_drain,
    standing_request,
)
from airflow_eos.core.checkpoint.heartbeat import StartedBy, heard
from airflow_eos.core.checkpoint.liveness import MISSED_BEATS, Standstill, process_state
from airflow_eos.core.checkpoint.liveness import process_mark as process_mark  # its former place
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.checkpoint.terms import newest_term
from airflow_eos.core.protocol.decision import Evidence, encode
from airflow_eos.errors import CheckpointFormatError, ConfigurationError, Remedy

_LONG_AGO_S = 60.0

StandbyEnd = Literal["called off", "refused", "failed"]


class Standby(Evidence, frozen=True, kw_only=True):
    """One driver that stands by; ``beat`` counts up while it stands by.

    ``behind`` is the term of the driver that it would follow; 0 where none was ever taken.
    ``is_ready`` says that its start is prepared up to the term, and that no warm-up runs: a driver
    that hands over waits for that. ``process`` is its
    :func:`~airflow_eos.core.checkpoint.liveness.process_mark`. ``end`` says that it stands by no
    more, and ``reason`` why: it was called off, was refused for what no restart heals, or failed.
    """

    words: ClassVar[tuple[str, ...]] = ("application_id", "host", "reason")

    name: str
    started_by: StartedBy | None
    application_id: str
    host: str
    pid: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    behind: int
    beat: int
    is_ready: bool = False
    process: str = ""
    interval_ms: Annotated[int, msgspec.Meta(ge=1, le=60_000)]
    end: StandbyEnd | None = None
    reason: str = ""

    def __str__(self) -> str:
        """Name the driver and who started it, for people."""
        whose = f", {self.started_by}" if self.started_by is not None else ""
        return f"driver {self.application_id} on {self.host}{whose}"


STANDBYS_KEPT = 20
"""How many files of standbys are left, the newest: one that lives writes its own all the time."""


def write_standby(store: CheckpointStore, standby: Standby) -> None:
    """Write that the driver stands by, or why it stands by no more."""
    store.put(standby_path(standby.name), encode(standby))


def prune_standbys(store: CheckpointStore) -> None:
    """Remove what a week ago was said last, and all but the newest: done by who comes and goes.

    By the store's clock, which reads at least the newest of these times.
    """
    listed = sorted(store.list(STANDBYS), key=lambda each: each.modified_at_ms, reverse=True)
    newest_ms = listed[0].modified_at_ms if listed else 0
    oldest_ms = newest_ms - DRAINS_KEPT // timedelta(milliseconds=1)
    old = (each.path for each in listed[:STANDBYS_KEPT] if each.modified_at_ms < oldest_ms)
    store.delete([*old, *(each.path for each in listed[STANDBYS_KEPT:])])


def standbys(store: CheckpointStore) -> tuple[Standby, ...]:
    """Return all standbys that have not left, living or not; skip what cannot be read."""
    return tuple(each for _, each in _said(store) if each.end is None)


def _said(store: CheckpointStore) -> list[tuple[int, Standby]]:
    """Return what each standby has said last, and when by the store's clock; the newest last.

    A file counts only at its standby's own path: with a copy elsewhere it would seem to change.
    """
    found = []
    for entry in sorted(store.list(STANDBYS), key=lambda each: each.modified_at_ms):
        try:
            standby = store.read(entry.path, Standby)
        except CheckpointFormatError:
            continue
        if standby is not None and entry.path == standby_path(standby.name):
            found.append((entry.modified_at_ms, standby))
    return found


def standby_of(store: CheckpointStore, submission: str) -> Standby | None:
    """Return the standby of this start of an app; None where it says nothing, or not yet."""
    try:
        return store.read(standby_path(submission), Standby)
    except CheckpointFormatError:
        return None


def remove_standby(store: CheckpointStore, name: str) -> None:
    """Remove the file of a standby that drives now, and what others have left."""
    prune_standbys(store)  # first: its own file is just written, now by the store's clock
    store.delete([standby_path(name)])


Standing = Literal["stands by", "not known", "gone", "refused", "failed"]


class StandbySeen(msgspec.Struct, frozen=True):
    """A standby, and whether it still stands by, from looks at it.

    It ``stands by`` if it was seen to change, and is ``gone`` once its process is seen from here to
    be gone, or it was seen to stand still for three of its intervals; until then ``not known``. It
    says ``refused`` and ``failed`` itself.
    """

    standby: Standby
    standing: Standing

    @property
    def lives(self) -> bool:
        """Whether it was seen to change, and not to stand still since."""
        return self.standing == "stands by"

    @property
    def has_left(self) -> bool:
        """Whether it takes no term any more: who is silent, and lives here, may be about to."""
        is_gone = self.standing == "gone" and process_state(self.standby) != "lives here"
        return is_gone or self.standby.end is not None

    def __str__(self) -> str:
        """Say whether the driver stands by, for people."""
        if self.lives:
            found = f"; asked to go on, it could not: {self.standby.reason}"
            return f"{self.standby} stands by{found if self.standby.reason else ''}"
        if self.standing == "not known":
            return f"{self.standby} has said that it stands by; whether it does shows in a moment"
        if self.standing == "gone":
            return f"nobody stands by: {self.standby} did, and is gone or stands still"
        verb = "was refused" if self.standing == "refused" else "failed"
        return f"nobody stands by: {self.standby} {verb}: {self.standby.reason}"


class StandbyReading:
    """A reading of the standbys, which compares each look with those before."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked_at = float("-inf")
        self._seen: dict[str, tuple[Standby, Standstill, bool]] = {}

    def look(self, store: CheckpointStore) -> tuple[StandbySeen, ...]:
        """Return the standbys that stand by, or may; where none does, the newest driver's last one.

        A standby that called itself off is left out. One that was refused, or is gone, is returned
        until another driver takes its term, by the store's own clock.
        """
        now = self._clock()
        if now - self._looked_at > _LONG_AGO_S:  # what changed in a long pause says little of now
            self._seen = {}
        self._looked_at = now
        said = [(at_ms, each) for at_ms, each in _said(store) if each.end != "called off"]
        self._seen = {each.name: self._held(each) for _, each in said}
        found = [StandbySeen(each, self._standing(each)) for _, each in said]
        there = tuple(each for each in found if each.standing in ("stands by", "not known"))
        if there or not found:
            return there
        term_ms = max((each.modified_at_ms for each in store.list(DRIVERS)), default=0)
        return (found[-1],) if said[-1][0] >= term_ms else ()

    def until_known(self, store: CheckpointStore) -> tuple[StandbySeen, ...]:
        """Look until each standby's standing is known; takes three of their intervals at most."""
        while True:
            found = self.look(store)
            untold = [each.standby for each in found if each.standing == "not known"]
            if not untold:
                return found
            time.sleep(min(0.5, *(each.interval_ms / 2000 for each in untold)))

    def _held(self, standby: Standby) -> tuple[Standby, Standstill, bool]:
        """Return the standby, how long it is the same, and whether it was seen to change."""
        new = standby, Standstill(self._clock), False
        last, silence, changed = self._seen.get(standby.name, new)
        silence.count(still=standby == last)
        return standby, silence, changed or standby != last

    def _standing(self, standby: Standby) -> Standing:
        if standby.end is not None and standby.end != "called off":
            return standby.end
        if process_state(standby) == "gone":
            return "gone"
        _, silence, changed = self._seen[standby.name]
        if silence.seconds >= MISSED_BEATS * standby.interval_ms / 1000:
            return "gone"
        return "stands by" if changed else "not known"


def living_standbys(store: CheckpointStore) -> tuple[Standby, ...]:
    """Return the standbys that were seen to change; takes three of their intervals at most."""
    found = StandbyReading().until_known(store)
    return tuple(each.standby for each in found if each.lives)


def hand_over(store: CheckpointStore, *, requested_by: str, reason: str) -> DrainRequest:
    """Ask the newest driver to end after its running batch, so that a standby goes on.

    Returns the request that stands there. Looks first whether anybody stands by.

    Raises:
        ConfigurationError: nobody stands by or drives, or a person has asked the driver to stop.
    """
    term = newest_term(store)
    if term == 0:
        raise ConfigurationError(
            f"No driver has ever started on {store.location}: nobody can hand over.",
            Remedy(change="give the checkpointLocation of the query"),
        )
    living = [each for each in living_standbys(store) if each.behind == term]
    if not living:
        raise ConfigurationError(
            f"No driver stands by for {store.location} (term {term}): a hand-over would stop the "
            "pipeline. Nothing was changed.",
            Remedy(change="start the new version of the app with --standby, then hand over"),
        )
    said = f"{requested_by} hands over to {living[0]}: {reason}"
    beat, _ = heard(store)
    request = standing_request(store)  # a person's to a former term may not have been heard yet
    if request is None or request.requested_by in NOT_FOR_GOOD:
        request = request_drain(store, requested_by=BY_STANDBY, reason=said, term=term)
    if request.requested_by != BY_STANDBY:
        raise ConfigurationError(
            f"{request.requested_by} has asked the driver of term {term} to stop "
            f"({request.reason}): it ends, and who stands by leaves too.",
            Remedy(change="start the app anew once it has ended", start=True),
        )
    if beat is not None and beat.term == term and beat.submission is not None:
        # The next driver removes the first request, and soon overwrites this driver's last
        # heartbeat: by this request, whoever started it learns that it was not superseded.
        request_drain(store, requested_by=BY_STANDBY, reason=said, submission=beat.submission)
    return request
