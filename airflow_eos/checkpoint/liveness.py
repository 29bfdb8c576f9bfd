"""``eos/driver.json``, ``eos/drain.json`` and ``eos/drains/``: signs of life, requests to stop.

Evidence for people and sensors, never for correctness: a heartbeat may lie (a stopped driver that
wakes up, clocks that differ), so no decision depends on one.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar, Literal

from airflow_eos.checkpoint import former
from airflow_eos.checkpoint.locations import HDFS, LOCAL, located
from airflow_eos.checkpoint.paths import DRAIN, DRAINS, HEARTBEAT, drain_path
from airflow_eos.checkpoint.starter import StartedBy
from airflow_eos.checkpoint.terms import newest_term
from airflow_eos.protocol.codec import Stored, encode

if TYPE_CHECKING:
    from airflow_eos.checkpoint.store import CheckpointStore

Phase = Literal["starting", "waiting", "preparing", "settling", "stopped", "failed"]
End = Literal["finished", "drained", "failed", "superseded"]

ENDED: frozenset[Phase] = frozenset({"stopped", "failed"})
"""The phases after which a driver says nothing any more."""

_BEATS = {LOCAL: timedelta(seconds=2), HDFS: timedelta(seconds=5)}

BY_AIRFLOW = "airflow"
"""Who asks where nobody did: a task of Airflow that ended before its app."""

DRAINS_KEPT = timedelta(days=7)
"""How long a request to one start is kept: a cluster may let it wait for its turn that long."""


class Heartbeat(Stored, frozen=True, kw_only=True):
    """What the driver said last. All times in milliseconds; ``*_at_ms`` since the epoch.

    ``interval_ms`` is how often it beats, ``trigger_ms`` the query's trigger interval: together
    they tell a reader from when on silence means something. ``term`` is the driver's; None where
    it has none (at least once, by a former release), or in a heartbeat of format version 1.
    ``started_by`` is None where it was started by hand, or by a release that did not say;
    ``master`` and ``deploy_mode`` are Spark's, empty in the same case; ``namespace`` is that of its
    pod, empty where it is in none or its release did not say. ``end`` and ``reason`` say how and
    why it ended, once it has; ``drained_by`` who asked it to, where somebody did.
    """

    words: ClassVar[tuple[str, ...]] = (
        *("master", "deploy_mode", "namespace", "application_id", "host"),
        *("reason", "drained_by"),
    )
    at_most: ClassVar[int | None] = 65_536

    format_version: int = 5
    term: int | None = None
    started_by: StartedBy | None = None
    master: str = ""
    deploy_mode: str = ""
    namespace: str = ""
    application_id: str
    host: str
    pid: int
    batch_id: int | None
    phase: Phase
    end: End | None = None
    reason: str | None = None
    drained_by: str | None = None
    beat_at_ms: int
    interval_ms: int
    trigger_ms: int
    started_at_ms: int

    @property
    def submission(self) -> str | None:
        """Which start of an app this driver is; None where nobody said."""
        return self.started_by.submission if self.started_by is not None else None


class DrainRequest(Stored, frozen=True, kw_only=True):
    """Somebody asks a driver to stop after the running batch.

    It means the driver of ``term``, or of ``submission``, which may have no term yet; where both
    are None (a driver without terms, or a request of format version 1) whoever runs now.
    """

    words: ClassVar[tuple[str, ...]] = ("requested_by", "reason")
    at_most: ClassVar[int | None] = 65_536

    format_version: int = 2
    term: int | None = None
    submission: str | None = None
    requested_by: str
    reason: str
    requested_at_ms: int

    def is_for(self, term: int | None, submission: str | None) -> bool:
        """Whether the driver of this term and submission is meant."""
        if self.term is None and self.submission is None:
            return True
        return (self.term is not None and self.term == term) or (
            self.submission is not None and self.submission == submission
        )


def beat_interval(location: str) -> timedelta:
    """How often a driver beats there, and looks for a request to drain.

    A disk costs nothing; on HDFS each beat is a new block; an object store bills each beat and each
    look: every 2 s, six times what our side of a batch a minute costs (docs/checkpoint-stores.md).
    """
    return _BEATS.get(located(location).scheme, timedelta(seconds=10))


def read_heartbeat(store: CheckpointStore) -> Heartbeat | None:
    """The last heartbeat, or None if no driver has ever beaten here.

    Raises:
        CheckpointFormatError: the object cannot be read as a heartbeat.
    """
    upgrades = {
        1: former.heartbeat,
        2: former.heartbeat_without_starter,
        3: former.heartbeat_without_requester,
        4: former.heartbeat_without_namespace,
    }
    return store.read(HEARTBEAT, Heartbeat, upgrades=upgrades)


def write_heartbeat(store: CheckpointStore, heartbeat: Heartbeat) -> None:
    """Replace the last heartbeat by this one, whole or not at all."""
    store.put(HEARTBEAT, encode(heartbeat))


def request_drain(
    store: CheckpointStore,
    *,
    requested_by: str,
    reason: str,
    term: int | None = None,
    submission: str | None = None,
) -> DrainRequest:
    """Ask a driver to stop after the running batch; returns the request that stands there.

    Each ``submission`` has a place of its own: it may come up long after others were asked. Asking
    the same driver again changes nothing. A request to another term, which has ended or is
    superseded, gives way.
    """
    request = DrainRequest(
        term=term,
        submission=submission,
        requested_by=requested_by,
        reason=reason,
        requested_at_ms=time.time_ns() // 1_000_000,
    )
    if submission is not None:
        if store.create(drain_path(submission), encode(request)):
            return request
        return request_to(store, submission) or request
    if store.create(DRAIN, encode(request)):
        return request
    standing = standing_request(store)
    if standing is not None and (standing.term, standing.submission) == (term, None):
        return standing
    if standing is not None:
        _keep_if_to_a_start(store, standing)
    store.put(DRAIN, encode(request))
    return request


def drain_newest(store: CheckpointStore, *, requested_by: str, reason: str) -> DrainRequest:
    """Ask the newest driver; returns the request that stands there.

    It is named by its term, unless the last one that beat has none (at least once, by a former
    release): such a driver heeds no request to a term, however many were taken before it.
    """
    beat = read_heartbeat(store)
    has_none = beat is not None and beat.term is None
    term = None if has_none else newest_term(store) or None
    return request_drain(store, requested_by=requested_by, reason=reason, term=term)


def drain_requested(
    store: CheckpointStore, *, term: int | None = None, submission: str | None = None
) -> DrainRequest | None:
    """The request that means the driver of this term and submission, or None.

    One by a person goes first: what a person asks for ends in order, whoever else asks.

    Raises:
        CheckpointFormatError: the object cannot be read as a request.
    """
    standing = standing_request(store)
    if standing is not None and standing.is_for(term, submission):
        return standing
    return None if submission is None else request_to(store, submission)


def drain_of(store: CheckpointStore, heartbeat: Heartbeat | None) -> DrainRequest | None:
    """The request that means the driver of this heartbeat; where none has beaten, the one there.

    Raises:
        CheckpointFormatError: the object cannot be read as a request.
    """
    if heartbeat is None:
        return standing_request(store)
    return drain_requested(store, term=heartbeat.term, submission=heartbeat.submission)


def standing_request(store: CheckpointStore) -> DrainRequest | None:
    """What stands in ``eos/drain.json``, whoever is meant.

    Raises:
        CheckpointFormatError: the object cannot be read as a request.
    """
    return _read(store, DRAIN)


def clear_drain(store: CheckpointStore, *, term: int | None, submission: str | None) -> None:
    """Remove a request that named nobody, or a former term: a starting driver's first step.

    One that names the driver itself stays: it was stopped before it had begun. So does one to
    another start, which may be about to come up; none is waited for longer than ``DRAINS_KEPT``.
    """
    _prune(store, submission)
    standing = standing_request(store)
    if standing is None:
        return
    if term is not None and standing.term is not None and standing.term > term:
        return
    names_nobody = standing.term is None and standing.submission is None
    if names_nobody or not standing.is_for(term, submission):
        _keep_if_to_a_start(store, standing)
        store.delete([DRAIN])


def _keep_if_to_a_start(store: CheckpointStore, standing: DrainRequest) -> None:
    """A former release wrote a request to one start into the place of all."""
    if standing.submission is not None:
        store.create(drain_path(standing.submission), encode(standing))


def _prune(store: CheckpointStore, ours: str | None) -> None:
    oldest_ms = time.time_ns() // 1_000_000 - DRAINS_KEPT // timedelta(milliseconds=1)
    own = None if ours is None else drain_path(ours)
    old = (each for each in store.list(DRAINS) if each.modified_at_ms < oldest_ms)
    store.delete(each.path for each in old if each.path != own)


def request_to(store: CheckpointStore, submission: str) -> DrainRequest | None:
    """The request to this start of an app, in its own place; None where there is none."""
    return _read(store, drain_path(submission))


def _read(store: CheckpointStore, path: str) -> DrainRequest | None:
    return store.read(path, DrainRequest, upgrades={1: former.drain_request})
