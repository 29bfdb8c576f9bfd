"""Signs of life, requests to stop, and who brings back a driver that has ended.

``eos/driver.json``; ``eos/drain.json`` and ``eos/drains/``; ``eos/restart.json`` and
``eos/resumption.json``; and that somebody watches it, ``eos/watchdog.json``.

Evidence for people and sensors, never for correctness: a heartbeat may lie (a stopped driver that
wakes up, clocks that differ), so no decision depends on one.
"""

from __future__ import annotations

import hashlib
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal
from urllib.parse import parse_qs, urlencode

import msgspec
import structlog

from airflow_eos.checkpoint.backend import (
    DRAIN,
    DRAINS,
    HEARTBEAT,
    REFUSED,
    RESTART,
    RESUMPTION,
    WATCHDOG,
    drain_path,
)
from airflow_eos.checkpoint.locations import HDFS, LOCAL, located
from airflow_eos.checkpoint.terms import newest_term
from airflow_eos.errors import (
    REFUSED_FOR_GOOD,
    CheckpointFormatError,
    ConfigurationError,
    EosError,
    Remedy,
)
from airflow_eos.protocol.decision import Evidence, encode, one_line

if TYPE_CHECKING:
    from airflow_eos.checkpoint.store import CheckpointStore

STARTED_BY = "EOS_STARTED_BY"
"""The environment variable that tells a driver."""
_DRAWN = re.compile(r"[0-9a-f]{44}", re.ASCII)
_MARK = 12


class StartedBy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One start of an app by one task of Airflow.

    ``submission`` is drawn anew for each start: what one ``spark-submit`` has begun, and nothing
    else, says it. It begins with a mark of the task, so that a checkpoint cannot name another
    task's start as ours: cluster managers know a driver by it. ``map_index`` is -1 where the task
    is not mapped.
    """

    dag_id: str
    task_id: str
    run_id: str
    map_index: int
    submission: str

    def is_same_task(self, other: StartedBy | None) -> bool:
        """Whether a try of the same task of the same run started it."""
        if other is None or self.task != other.task:
            return False
        drawn = _DRAWN.fullmatch(other.submission) is not None
        return not drawn or other.submission.startswith(self._mark)

    def begun_anew(self) -> StartedBy:
        """The next start of this task."""
        submission = f"{self._mark}{uuid.uuid4().hex}"
        return msgspec.structs.replace(self, submission=submission)

    @property
    def _mark(self) -> str:
        return hashlib.sha256(repr(self.task).encode()).hexdigest()[:_MARK]

    @property
    def task(self) -> tuple[str, str, str, int]:
        """The task, without saying which start it was."""
        return self.dag_id, self.task_id, self.run_id, self.map_index

    def __str__(self) -> str:
        """For people."""
        mapped = f"[{self.map_index}]" if self.map_index >= 0 else ""
        return one_line(f"task {self.dag_id}.{self.task_id}{mapped} of run {self.run_id}")

    def as_text(self) -> str:
        """What the environment variable says."""
        return urlencode({**msgspec.structs.asdict(self), "map_index": str(self.map_index)})

    @classmethod
    def of_text(cls, text: str | None) -> StartedBy | None:
        """What the environment variable says; None where nobody has set it: started by hand.

        Raises:
            ConfigurationError: it cannot be read.
        """
        if not text:
            return None
        said = parse_qs(text, keep_blank_values=True)
        fields = {name: values[-1] for name, values in said.items()}
        try:
            return msgspec.convert(fields, cls, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigurationError(
                f"{STARTED_BY}={text!r} cannot be read ({error}). SparkStreamingOperator sets it: "
                "leave it away where an app is started by hand."
            ) from error


# --- liveness -------------------------------------------------------------------------------------


log = structlog.get_logger(__name__)

Phase = Literal["starting", "waiting", "preparing", "settling", "stopped", "failed"]
End = Literal["finished", "drained", "failed", "superseded"]

ENDED: frozenset[Phase] = frozenset({"stopped", "failed"})
"""The phases after which a driver says nothing any more."""

_BEATS = {LOCAL: timedelta(seconds=2), HDFS: timedelta(seconds=5)}

BY_AIRFLOW = "airflow"
"""Who asks where nobody did: a task of Airflow that ended before its app."""

BY_STANDBY = "standby"
"""Who asks where the pipeline is to go on in the driver that stands by."""

NOT_FOR_GOOD = frozenset({BY_AIRFLOW, BY_STANDBY})
"""Whose requests say nothing of the pipeline: it is to go on. All others are a person's."""

DRAINS_KEPT = timedelta(days=7)
"""How long a request to one start is kept: a cluster may let it wait for its turn that long."""


MomentMs = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999)]
"""A moment of the years that a date can have: what else stands there was written by no clock."""


class Heartbeat(Evidence, frozen=True, kw_only=True):
    """What the driver said last. All times in milliseconds; ``*_at_ms`` since the epoch.

    ``interval_ms`` is how often it beats, ``trigger_ms`` the query's trigger interval: together
    they tell a reader from when on silence means something. He waits for a few of them: with one
    that no driver can mean he would take it for dead at once, or never. ``term`` is the driver's.
    ``started_by`` is None where it was started by hand; ``master`` and ``deploy_mode`` are Spark's;
    ``namespace`` is that of its pod, empty where it is in none. ``end`` and ``reason`` say how and
    why it ended, once it has; ``drained_by`` who asked it to, where somebody did; ``restart_heals``
    whether the next start meets what it failed with again, None where nobody knows. ``process``
    tells its process from all others; see :func:`airflow_eos.checkpoint.standby.process_mark`.
    """

    words: ClassVar[tuple[str, ...]] = (
        *("master", "deploy_mode", "namespace", "application_id", "host"),
        *("reason", "drained_by"),
    )

    term: int | None = None
    started_by: StartedBy | None = None
    master: str = ""
    deploy_mode: str = ""
    namespace: str = ""
    application_id: str
    host: str
    pid: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    process: str = ""
    batch_id: int | None
    phase: Phase
    end: End | None = None
    reason: str | None = None
    drained_by: str | None = None
    restart_heals: bool | None = None
    beat_at_ms: MomentMs
    interval_ms: Annotated[int, msgspec.Meta(ge=1, le=3_600_000)]
    trigger_ms: Annotated[int, msgspec.Meta(ge=0, le=366 * 86_400_000)]
    started_at_ms: MomentMs

    @property
    def submission(self) -> str | None:
        """Which start of an app this driver is; None where nobody said."""
        return self.started_by.submission if self.started_by is not None else None


class DrainRequest(Evidence, frozen=True, kw_only=True):
    """Somebody asks a driver to stop after the running batch.

    It means the driver of ``term``, or of ``submission``, which may have no term yet; where both
    are None whoever runs now.
    """

    words: ClassVar[tuple[str, ...]] = ("requested_by", "reason")

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


class Replacement(Evidence, frozen=True, kw_only=True):
    """The ``number``-th start in the place of a driver that has ended, out of ``limit``.

    ``driver`` is the application id of the one that beat last, :data:`NONE_YET` where none has. A
    task that starts its app again says so in ``eos/restart.json``; a run of Airflow that replaces
    a driver in ``eos/resumption.json``. The second is a count that has to last: Airflow's own rows
    are deleted by its housekeeping. Both are outdated once another driver beats.
    """

    words: ClassVar[tuple[str, ...]] = ("driver", "by")

    driver: str
    number: int
    limit: int | None
    by: str

    def __str__(self) -> str:
        """For people."""
        of = "" if self.limit is None else f" of {self.limit}"
        return f"restart {self.number}{of}, by {self.by}"


class Refusal(Evidence, frozen=True, kw_only=True):
    """A start in the place of ``driver`` was refused, and no restart heals what it was refused for.

    An app that ends before its first heartbeat leaves none to say so: the task that has started it
    does. Outdated once another driver beats, and gone once a task starts the app again.
    """

    words: ClassVar[tuple[str, ...]] = ("driver", "reason", "dag_id", "run_id")

    driver: str
    reason: str
    dag_id: str
    run_id: str

    def __str__(self) -> str:
        """For people."""
        whose = f"run {self.run_id} of {self.dag_id}"
        return f"no restart heals what its start was refused for: {self.reason} ({whose})"


NONE_YET = "first"
"""In the place of an application id: no driver has beaten yet."""


def driver_of(heartbeat: Heartbeat | None) -> str:
    """What names the driver that beat last, to those who replace it."""
    return heartbeat.application_id if heartbeat is not None else NONE_YET


def note_restart(store: CheckpointStore, replacement: Replacement) -> None:
    """Say that a task is about to start its app again."""
    store.put(RESTART, encode(replacement))


def note_resumption(store: CheckpointStore, replacement: Replacement) -> None:
    """Say that a run of Airflow has begun to replace a driver."""
    store.put(RESUMPTION, encode(replacement))


def note_refusal(store: CheckpointStore, reason: str, *, dag_id: str, run_id: str) -> None:
    """Say that a run's start was refused for good; what cannot be noted is only logged."""
    try:
        driver = driver_of(read_heartbeat(store))
        refusal = Refusal(driver=driver, reason=reason, dag_id=dag_id, run_id=run_id)
        store.put(REFUSED, encode(refusal))
    except EosError as error:
        log.warning("refusal_not_noted", reason=reason, error=str(error))


@contextmanager
def refusals_noted(store: CheckpointStore, *, dag_id: str, run_id: str) -> Iterator[None]:
    """Leave in the checkpoint that what this run does inside was refused for good, where it was."""
    try:
        yield
    except REFUSED_FOR_GOOD as error:
        note_refusal(store, f"{type(error).__name__}: {error}", dag_id=dag_id, run_id=run_id)
        raise


def forget_refusal(store: CheckpointStore) -> None:
    """A start begins: whether it is refused shows anew."""
    store.delete([REFUSED])


def refusal_of(store: CheckpointStore, heartbeat: Heartbeat | None) -> Refusal | None:
    """Why nobody is to start an app in the place of this driver; None: nobody was refused."""
    found = store.read(REFUSED, Refusal)
    return found if found is not None and found.driver == driver_of(heartbeat) else None


def resumption_of(store: CheckpointStore, heartbeat: Heartbeat | None) -> Replacement | None:
    """The newest run that has begun to replace this driver; None: none has."""
    return _replacement(store, RESUMPTION, heartbeat)


def next_start(
    noted: Replacement | None, has_failed: Callable[[int], bool | None], limit: int
) -> int | None:
    """Which run replaces a driver, from 0 on; None: so many have failed that none is to.

    Args:
        noted: the newest that has begun.
        has_failed: of the run of that number; False where it goes on or was a success, None where
            nobody knows it any more. One that began, and is not known, is over.
        limit: how many there may be.
    """
    number = 0 if noted is None else noted.number - 1
    if noted is not None and has_failed(number) is None:
        number += 1
    while number < limit and has_failed(number):
        number += 1
    return number if number < limit else None


def brought_back_by(store: CheckpointStore, heartbeat: Heartbeat | None) -> str | None:
    """Who was last at starting an app in the place of this driver, in words; None: nobody.

    For people: whether he still is at it, Airflow knows. Who was refused for good is not.
    """
    try:
        refused = refusal_of(store, heartbeat) is not None
        found = _replacement(store, RESTART, heartbeat) or resumption_of(store, heartbeat)
    except CheckpointFormatError as error:
        log.warning("not_known_who_brings_it_back", error=str(error))
        return None
    return None if refused or found is None else str(found)


def why_refused(store: CheckpointStore, heartbeat: Heartbeat | None) -> str | None:
    """Why nobody but a person starts an app in the place of this driver, in words; None: nothing.

    For people, too: what cannot be read says nothing here.
    """
    try:
        found = refusal_of(store, heartbeat)
    except CheckpointFormatError as error:
        log.warning("not_known_whether_it_was_refused", error=str(error))
        return None
    return None if found is None else str(found)


def _replacement(
    store: CheckpointStore, path: str, heartbeat: Heartbeat | None
) -> Replacement | None:
    found = store.read(path, Replacement)
    return found if found is not None and found.driver == driver_of(heartbeat) else None


MISSED_LOOKS = 3
"""A watchdog that has not looked for this many of its own intervals is taken to look no more."""


class WatchdogLook(Evidence, frozen=True, kw_only=True):
    """The newest look of a pipeline's watchdog; each is another ``run_id``.

    ``interval_ms`` is how often it means to look; None where its schedule does not say.
    """

    words: ClassVar[tuple[str, ...]] = ("dag_id", "run_id")

    dag_id: str
    run_id: str
    interval_ms: Annotated[int, msgspec.Meta(ge=1)] | None


def note_look(store: CheckpointStore, look: WatchdogLook) -> None:
    """Say that a watchdog looks, so that whoever reads the checkpoint sees when it stops."""
    store.put(WATCHDOG, encode(look))


def read_look(store: CheckpointStore) -> WatchdogLook | None:
    """The newest look; None: no watchdog has ever looked here, or what it wrote is damaged."""
    try:
        return store.read(WATCHDOG, WatchdogLook)
    except CheckpointFormatError as error:
        log.warning("watchdog_not_known", error=str(error))
        return None


def looks_no_more(look: WatchdogLook | None, silent_ms: float) -> str | None:
    """What to say of a watchdog whose newest look stood there for so long; None: nothing."""
    if look is None or look.interval_ms is None:
        return None
    if silent_ms < MISSED_LOOKS * look.interval_ms:
        return None
    return (
        f"the watchdog {look.dag_id} has not looked for {silent_ms / look.interval_ms:.0f} of its "
        "intervals: is it paused, or does Airflow's scheduler stand still?"
    )


def missed_looks(store: CheckpointStore) -> str | None:
    """What one look can say of a watchdog that has stopped; None where it tells nothing.

    By the store's own clock: the driver has beaten since, for so long.
    """
    look, at, beat = read_look(store), store.head(WATCHDOG), store.head(HEARTBEAT)
    if at is None or beat is None:
        return None
    return looks_no_more(look, beat.modified_at_ms - at.modified_at_ms)


class Standstill:
    """For how long a value has been the same, by the reader's own clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._value: object = None
        self._since_s = clock()

    def lasts_s(self, value: object) -> float:
        """Seconds since it was first seen; what differs from the look before begins at 0."""
        if value != self._value:
            self._value, self._since_s = value, self._clock()
        return self._clock() - self._since_s


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
    return store.read(HEARTBEAT, Heartbeat)


def heard(store: CheckpointStore) -> tuple[Heartbeat | None, str]:
    """The last heartbeat, and why nobody can read it: nothing else is hidden by that."""
    try:
        return read_heartbeat(store), ""
    except CheckpointFormatError:
        return None, f"{HEARTBEAT} is damaged: whether a driver runs is not known"


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
    the same driver again changes nothing, but that a hand-over gives way to a person who wants it
    to stop. A request to another term, which has ended or is superseded, gives way.
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
    if (
        standing is not None
        and (standing.term, standing.submission) == (term, None)
        and (requested_by in NOT_FOR_GOOD or standing.requested_by not in NOT_FOR_GOOD)
    ):
        return standing
    store.put(DRAIN, encode(request))
    return request


def drain_newest(store: CheckpointStore, *, requested_by: str, reason: str) -> DrainRequest:
    """Ask the newest driver; returns the request that stands there.

    It is named by its term; before the first is taken, whoever runs then is meant.
    """
    term = newest_term(store) or None
    return request_drain(store, requested_by=requested_by, reason=reason, term=term)


def drain_requested(
    store: CheckpointStore,
    *,
    term: int | None = None,
    submission: str | None = None,
) -> DrainRequest | None:
    """The request that means the driver of this term and submission, or None.

    One by a person goes first: what a person asks for ends in order, whoever else asks.
    """
    return _meant(partial(_read, store), term, submission)


def _meant(
    read: Callable[[str], DrainRequest | None], term: int | None, submission: str | None
) -> DrainRequest | None:
    standing = read(DRAIN)
    if standing is not None and standing.is_for(term, submission):
        return standing
    return None if submission is None else read(drain_path(submission))


def drain_of(
    store: CheckpointStore, heartbeat: Heartbeat | None, *, known: bool = False
) -> DrainRequest | None:
    """The request that means the driver of this heartbeat; where none has beaten, the one there.

    Args:
        store: the checkpoint.
        heartbeat: the last.
        known: for who starts an app where nobody asked it to stop: a request that is damaged may be
            a person's (CheckpointFormatError). To others it says nothing.
    """
    read = partial(_read, store, known=known)
    return read(DRAIN) if heartbeat is None else _meant(read, heartbeat.term, heartbeat.submission)


def who_asked(heartbeat: Heartbeat | None, request: DrainRequest | None) -> frozenset[str]:
    """Who has asked a driver to stop: by the request that means it, and by what it said itself."""
    asked = None if request is None else request.requested_by
    said = None if heartbeat is None else heartbeat.drained_by
    return frozenset(each for each in (asked, said) if each is not None)


def standing_request(store: CheckpointStore) -> DrainRequest | None:
    """What stands in ``eos/drain.json``, whoever is meant."""
    return _read(store, DRAIN)


def clear_drain(store: CheckpointStore, *, term: int | None, submission: str | None) -> None:
    """Remove a request that named nobody, or a former term: a starting driver's first step.

    One that names the driver itself stays: it was stopped before it had begun. So does one to
    another start, which may be about to come up; none is waited for longer than ``DRAINS_KEPT``.
    """
    _prune(store, submission)
    standing = standing_request(store)
    if standing is None:
        store.delete([DRAIN])  # there is none, or one that nobody can read
        return
    if term is not None and standing.term is not None and standing.term > term:
        return
    names_nobody = standing.term is None and standing.submission is None
    if names_nobody or not standing.is_for(term, submission):
        store.delete([DRAIN])


def _prune(store: CheckpointStore, ours: str | None) -> None:
    own, listed = None if ours is None else drain_path(ours), store.list(DRAINS)
    # All by the store's clock: what was written there last, it has seen.
    beat = store.head(HEARTBEAT)
    written_ms = [each.modified_at_ms for each in (*listed, *([beat] if beat else []))]
    oldest_ms = max(written_ms, default=0) - DRAINS_KEPT // timedelta(milliseconds=1)
    old = (each for each in listed if each.modified_at_ms < oldest_ms)
    store.delete(each.path for each in old if each.path != own)


def request_to(store: CheckpointStore, submission: str) -> DrainRequest | None:
    """The request to this start of an app, in its own place; None where there is none."""
    return _read(store, drain_path(submission))


def _read(store: CheckpointStore, path: str, *, known: bool = False) -> DrainRequest | None:
    """What cannot be read asks nobody for anything; whoever asks again replaces it."""
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
