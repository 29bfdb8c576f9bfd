"""``eos/driver.json`` and ``eos/drain.json``: signs of life, and the request to stop.

Evidence for people and sensors, never for correctness: a heartbeat may lie (a stopped driver that
wakes up, clocks that differ), so no decision depends on one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

from airflow_eos.checkpoint import former
from airflow_eos.checkpoint.paths import DRAIN, HEARTBEAT
from airflow_eos.protocol.codec import Stored, encode

if TYPE_CHECKING:
    from airflow_eos.checkpoint.store import CheckpointStore

Phase = Literal["starting", "waiting", "preparing", "settling", "stopped", "failed"]


class Heartbeat(Stored, frozen=True, kw_only=True):
    """What the driver said last. All times in milliseconds; ``*_at_ms`` since the epoch.

    ``interval_ms`` is how often it beats, ``trigger_ms`` the query's trigger interval: together
    they tell a reader from when on silence means something. ``term`` is the driver's; None where
    it has none (at least once), or in a heartbeat of format version 1.
    """

    format_version: int = 2
    term: int | None = None
    application_id: str
    host: str
    pid: int
    batch_id: int | None
    phase: Phase
    beat_at_ms: int
    interval_ms: int
    trigger_ms: int
    started_at_ms: int


class DrainRequest(Stored, frozen=True, kw_only=True):
    """Somebody asks the driver to stop after the running batch."""

    requested_by: str
    reason: str
    requested_at_ms: int


def read_heartbeat(store: CheckpointStore) -> Heartbeat | None:
    """The last heartbeat, or None if no driver has ever beaten here.

    Raises:
        CheckpointFormatError: the object cannot be read as a heartbeat.
    """
    return store.read(HEARTBEAT, Heartbeat, upgrades={1: former.heartbeat})


def write_heartbeat(store: CheckpointStore, heartbeat: Heartbeat) -> None:
    """Replace the last heartbeat by this one, whole or not at all."""
    store.put(HEARTBEAT, encode(heartbeat))


def request_drain(store: CheckpointStore, *, requested_by: str, reason: str) -> DrainRequest:
    """Ask the driver to stop after the running batch; returns the request that stands there.

    Asking again changes nothing: the first request stays until the next start removes it.
    """
    request = DrainRequest(
        requested_by=requested_by, reason=reason, requested_at_ms=time.time_ns() // 1_000_000
    )
    store.create(DRAIN, encode(request))
    return drain_requested(store) or request


def drain_requested(store: CheckpointStore) -> DrainRequest | None:
    """The request to stop, or None.

    Raises:
        CheckpointFormatError: the object cannot be read as a request.
    """
    return store.read(DRAIN, DrainRequest)


def clear_drain(store: CheckpointStore) -> None:
    """Remove the request, if any: the starting driver's first step."""
    store.delete([DRAIN])
