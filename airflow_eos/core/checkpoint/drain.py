"""Requests to a driver to end after its running batch: ``eos/drain.json`` and ``eos/drains/``.

Evidence, as heartbeats are: a driver that hears none goes on, and loses no row by that.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import ClassVar

import msgspec

from airflow_eos.core.checkpoint.backend import DRAIN, DRAINS, HEARTBEAT, drain_path
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.checkpoint.terms import newest_term
from airflow_eos.core.log import Log
from airflow_eos.core.protocol.decision import Evidence, encode
from airflow_eos.errors import CheckpointFormatError, Remedy

log = Log(__name__)


BY_AIRFLOW = "airflow"
"""The requester of a drain that nobody wished for: a task of Airflow that ended before its app."""

BY_STANDBY = "standby"
"""The requester of a drain after which the pipeline is to go on in the driver that stands by."""

NOT_FOR_GOOD = frozenset({BY_AIRFLOW, BY_STANDBY})
"""Requesters of drains after which the pipeline is to go on. All other requests are a person's."""

DRAINS_KEPT = timedelta(days=7)
"""How long a drain request to one start is kept: a cluster may let the app wait that long."""


class DrainRequest(Evidence, frozen=True, kw_only=True):
    """A request to a driver to stop after the running batch.

    It is for the driver of ``term``, or of ``submission``, which may have no term yet; where both
    are None, for whoever runs now.
    """

    words: ClassVar[tuple[str, ...]] = ("requested_by", "reason")

    term: int | None = None
    submission: str | None = None
    requested_by: str
    reason: str
    requested_at_ms: int

    def is_for(self, term: int | None, submission: str | None) -> bool:
        """Whether the request is for the driver of this term and submission."""
        if self.term is None and self.submission is None:
            return True
        return (self.term is not None and self.term == term) or (
            self.submission is not None and self.submission == submission
        )

    def is_of_before(self, term: int | None) -> bool:
        """Whether the request is for a driver that had a term before this one."""
        return self.term is not None and term is not None and self.term < term

    def is_for_who_came_after(self, term: int | None) -> bool:
        """Whether the request is for a driver that took a term after this one."""
        return self.term is not None and term is not None and self.term > term


class Beginning(msgspec.Struct, frozen=True):
    """The moment at which a start began, or a standby came, by the request that stood there then.

    That one is over for it: somebody has started it all the same. What a person asks for later he
    asks of it, too, although it has no term yet that the request could name.
    """

    pending: DrainRequest | None

    @classmethod
    def now(cls, store: CheckpointStore) -> Beginning:
        """Look at the request that stands there."""
        return cls(standing_request(store))

    def is_before(self, request: DrainRequest) -> bool:
        """Whether a person has asked for this since; whom it names may have changed meanwhile."""
        is_it = self.pending is not None and _asked(request) == _asked(self.pending)
        return request.requested_by not in NOT_FOR_GOOD and not is_it


def _asked(request: DrainRequest) -> tuple[str, str, int]:
    return request.requested_by, request.reason, request.requested_at_ms


def request_drain(
    store: CheckpointStore,
    *,
    requested_by: str,
    reason: str,
    term: int | None = None,
    submission: str | None = None,
) -> DrainRequest:
    """Ask a driver to stop after the running batch; return the request that stands there.

    Each ``submission`` has a request of its own: its start may come up long after other requests.
    Asking the same driver again changes nothing, but that a hand-over gives way to whoever wants it
    to stop. A request to another term, which has ended or is superseded, gives way.
    """
    request = _request(requested_by, reason, term=term, submission=submission)
    if submission is not None:
        if store.create(drain_path(submission), encode(request)):
            return request
        pending = request_to(store, submission)
        if pending is not None and (
            pending.requested_by != BY_STANDBY or requested_by == BY_STANDBY
        ):
            return pending
        store.put(drain_path(submission), encode(request))  # also over one that nobody can read
        return request
    if store.create(DRAIN, encode(request)):
        return request
    pending = standing_request(store)
    if (
        pending is not None
        and (pending.term, pending.submission) == (term, None)
        and (requested_by in NOT_FOR_GOOD or pending.requested_by not in NOT_FOR_GOOD)
    ):
        return pending
    return _in_its_place(store, request)


def drain_newest(store: CheckpointStore, *, requested_by: str, reason: str) -> DrainRequest:
    """Ask the newest driver, and whoever is about to follow it, to stop; return the request.

    The request names the driver's term; before the first is taken, it is for whoever runs then. It
    is always a new one: a start that has found the last one there takes that for over. Asked again
    where a term was taken meanwhile: who takes one later finds the request after that.
    """
    while True:
        term = newest_term(store) or None
        request = _request(requested_by, reason, term=term)
        if not store.create(DRAIN, encode(request)):
            _in_its_place(store, request)
        if (newest_term(store) or None) == term:
            return request


def _request(
    requested_by: str, reason: str, *, term: int | None, submission: str | None = None
) -> DrainRequest:
    return DrainRequest(
        term=term,
        submission=submission,
        requested_by=requested_by,
        reason=reason,
        requested_at_ms=time.time_ns() // 1_000_000,
    )


def _in_its_place(store: CheckpointStore, request: DrainRequest) -> DrainRequest:
    """Replace the request that was read; return the one that stands there now."""
    is_a_persons = request.requested_by not in NOT_FOR_GOOD
    if is_a_persons:
        store.put(_beside(request.term), encode(request))
    store.put(DRAIN, encode(request))
    return request if is_a_persons else _put_back(store, request.term) or request


def _remove(store: CheckpointStore, term: int | None) -> None:
    store.delete([DRAIN])
    _put_back(store, term)


def _put_back(store: CheckpointStore, term: int | None) -> DrainRequest | None:
    """Write a person's request to this term again; return it, or None where there is none."""
    request = _read(store, _beside(term))
    if request is not None:
        store.put(DRAIN, encode(request))
    return request


def _beside(term: int | None) -> str:
    return drain_path(f"term-{term or 0}")


def drain_requested(
    store: CheckpointStore,
    *,
    term: int | None = None,
    submission: str | None = None,
    began: Beginning | None = None,
    or_after: bool = False,
    known: bool = False,
) -> DrainRequest | None:
    """Return the request that is for the driver of this term and submission, or None.

    A person's request goes first: what a person asks for ends in order, whoever else asks. One to a
    former term is for this driver, too, where it came after that one ``began``; one to a later term
    with ``or_after``. ``known``: see :func:`~airflow_eos.core.checkpoint.heartbeat.drain_of`.
    """
    pending = standing_request(store, known=known)
    if pending is not None and not (
        pending.is_for(term, submission)
        or (or_after and pending.is_for_who_came_after(term))
        or (began is not None and began.is_before(pending) and pending.is_of_before(term))
    ):
        pending = None
    if submission is None or (pending is not None and pending.requested_by != BY_STANDBY):
        return pending
    to_it = request_to(store, submission, known=known)
    return to_it or pending  # whoever wants it to stop, before a hand-over


def standing_request(store: CheckpointStore, *, known: bool = False) -> DrainRequest | None:
    """Return the request in ``eos/drain.json``, whichever driver it is for."""
    return _read(store, DRAIN, known=known)


def is_asked_for_nothing(store: CheckpointStore, term: int) -> bool:
    """Whether the driver of ``term`` is the newest, and no request stands.

    The request is looked at first: whoever takes the next term removes it, and only after that.
    """
    return standing_request(store) is None and newest_term(store) == term


def clear_drain(
    store: CheckpointStore,
    *,
    term: int | None,
    submission: str | None,
    began: Beginning | None = None,
) -> None:
    """Remove a request that named no driver, or a former term: a starting driver's first step.

    A request that names the driver itself stays: it was stopped before it had begun. So does what a
    person has asked for since the driver ``began``, which nobody has heard: it names this driver
    from now on, by which others see whom it is for. And one to another start, which may be about to
    come up; none is waited for longer than ``DRAINS_KEPT``.
    """
    _prune(store, submission)
    try:
        pending = store.read(DRAIN, DrainRequest)
    except CheckpointFormatError:
        _remove(store, term)
        return
    if pending is None or pending.is_for_who_came_after(term):
        return
    if began is not None and began.is_before(pending):
        if pending.is_of_before(term):
            store.put(DRAIN, encode(msgspec.structs.replace(pending, term=term)))
        return
    names_nobody = pending.term is None and pending.submission is None
    if names_nobody or not pending.is_for(term, submission):
        _remove(store, term)


def withdraw_hand_over(store: CheckpointStore, *, term: int | None, submission: str | None) -> None:
    """Remove what asks this driver to hand over; what asks it to stop stays."""
    # The start's own first: left alone there, a superseded end would pass for one in order.
    for path in (*([] if submission is None else [drain_path(submission)]), DRAIN):
        asked = _read(store, path)
        if asked and asked.requested_by == BY_STANDBY and asked.is_for(term, submission):
            store.delete([path])
            if path == DRAIN:
                _put_back(store, term)


def _prune(store: CheckpointStore, ours: str | None) -> None:
    own, listed = None if ours is None else drain_path(ours), store.list(DRAINS)
    # Ages are reckoned by the store's clock, which reads at least the newest of these times.
    beat = store.head(HEARTBEAT)
    written_ms = [each.modified_at_ms for each in (*listed, *([beat] if beat else []))]
    oldest_ms = max(written_ms, default=0) - DRAINS_KEPT // timedelta(milliseconds=1)
    old = (each for each in listed if each.modified_at_ms < oldest_ms)
    store.delete(each.path for each in old if each.path != own)


def request_to(
    store: CheckpointStore, submission: str, *, known: bool = False
) -> DrainRequest | None:
    """Return the drain request to this start of an app, from its own file; None: there is none.

    ``known``: see :func:`~airflow_eos.core.checkpoint.heartbeat.drain_of`.
    """
    return _read(store, drain_path(submission), known=known)


def _read(store: CheckpointStore, path: str, *, known: bool = False) -> DrainRequest | None:
    """Read a request; one that cannot be read asks for nothing, and the next replaces it."""
    try:
        return store.read(path, DrainRequest)
    except CheckpointFormatError as error:
        if known:
            raise CheckpointFormatError(
                f"{path} cannot be read, so whether a person has asked the app to stop is not "
                "known, and nobody starts it.",
                Remedy(commands=("airflow-eos drain CHECKPOINT",), costs="the app stays down"),
                Remedy(change="start the app by hand, where it is to run"),
            ) from error
        log.warning("drain_request_unreadable", error=str(error), hint="ask again")
        return None
