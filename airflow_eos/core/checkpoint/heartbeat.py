"""Heartbeats, requests to drain, and records of who replaces a driver that has ended.

The files: ``eos/driver.json``; ``eos/drain.json`` and ``eos/drains/``; ``eos/restart.json`` and
``eos/resumption.json``; and ``eos/watchdog.json``, which says that a watchdog watches.

They are evidence for people and sensors, never for correctness: a heartbeat may lie (a stopped
driver that wakes up, clocks that differ), so no decision depends on one.
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

from airflow_eos.core.checkpoint.backend import (
    DRAIN,
    DRAINS,
    EOS,
    HEARTBEAT,
    REFUSED,
    RESTART,
    RESUMPTION,
    WATCHDOG,
    drain_path,
)
from airflow_eos.core.checkpoint.locations import HDFS, LOCAL, located
from airflow_eos.core.checkpoint.terms import newest_term
from airflow_eos.core.protocol.decision import Evidence, encode, one_line
from airflow_eos.errors import (
    REFUSED_FOR_GOOD,
    CheckpointFormatError,
    ConfigurationError,
    EosError,
    Remedy,
)

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint.store import CheckpointStore

STARTED_BY = "EOS_STARTED_BY"
"""The environment variable that tells a driver which start it is; see :class:`StartedBy`."""
_DRAWN = re.compile(r"[0-9a-f]{44}", re.ASCII)
_MARK = 12


class StartedBy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One start of an app by one task of Airflow.

    ``submission`` is drawn anew for each start: only what one ``spark-submit`` has begun carries
    it. It begins with a mark of the task, so that a checkpoint cannot name another task's start as
    ours: cluster managers know a driver by its submission. ``map_index`` is -1 where the task is
    not mapped.
    """

    dag_id: str
    task_id: str
    run_id: str
    map_index: int
    submission: str

    def is_same_task(self, other: StartedBy | None) -> bool:
        """Whether ``other`` is a start by the same task of the same run, in any try."""
        if other is None or self.task != other.task:
            return False
        drawn = _DRAWN.fullmatch(other.submission) is not None
        return not drawn or other.submission.startswith(self._mark)

    def begun_anew(self) -> StartedBy:
        """Return the next start of this task, with a new submission."""
        submission = f"{self._mark}{uuid.uuid4().hex}"
        return msgspec.structs.replace(self, submission=submission)

    @property
    def _mark(self) -> str:
        return hashlib.sha256(repr(self.task).encode()).hexdigest()[:_MARK]

    @property
    def task(self) -> tuple[str, str, str, int]:
        """The DAG, task, run and map index, without the submission."""
        return self.dag_id, self.task_id, self.run_id, self.map_index

    def __str__(self) -> str:
        """Name the task and its run, for people."""
        mapped = f"[{self.map_index}]" if self.map_index >= 0 else ""
        return one_line(f"task {self.dag_id}.{self.task_id}{mapped} of run {self.run_id}")

    def as_text(self) -> str:
        """Return the value of the environment variable :data:`STARTED_BY`."""
        return urlencode({**msgspec.structs.asdict(self), "map_index": str(self.map_index)})

    @classmethod
    def of_text(cls, text: str | None) -> StartedBy | None:
        """Parse the environment variable; None where nobody has set it, for a start by hand.

        Raises:
            ConfigurationError: the value cannot be read.
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
"""The phases after which a driver writes no heartbeat any more."""

_BEATS = {LOCAL: timedelta(seconds=2), HDFS: timedelta(seconds=5)}

BY_AIRFLOW = "airflow"
"""The requester of a drain that nobody wished for: a task of Airflow that ended before its app."""

BY_STANDBY = "standby"
"""The requester of a drain after which the pipeline is to go on in the driver that stands by."""

NOT_FOR_GOOD = frozenset({BY_AIRFLOW, BY_STANDBY})
"""Requesters of drains after which the pipeline is to go on. All other requests are a person's."""

DRAINS_KEPT = timedelta(days=7)
"""How long a drain request to one start is kept: a cluster may let the app wait that long."""


MomentMs = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999)]
"""A time in ms since the epoch, within the years of a date: no clock has written another value."""


class Heartbeat(Evidence, frozen=True, kw_only=True):
    """The newest heartbeat of a driver. All times in ms; ``*_at_ms`` since the epoch.

    ``interval_ms`` is how often the driver beats, ``trigger_ms`` the query's trigger interval:
    together they tell a reader how long a silence must last to mean something. A reader waits for a
    few intervals: by one that no driver can mean, the driver would be dead at once, or never.
    ``term`` is the driver's. ``started_by`` is None for a start by hand; ``master`` and
    ``deploy_mode`` are Spark's; ``namespace`` is that of the driver's pod, empty where it is in
    none. ``end`` and ``reason`` say how and why the driver ended; ``drained_by`` who asked it to,
    if anybody did; ``restart_heals`` whether a restart heals its failure, None where nobody knows.
    ``process`` is its :func:`airflow_eos.core.checkpoint.liveness.process_mark`.
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
        """The submission of the start that this driver is; None where nobody said."""
        return self.started_by.submission if self.started_by is not None else None


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

    standing: DrainRequest | None

    @classmethod
    def now(cls, store: CheckpointStore) -> Beginning:
        """Look at the request that stands there."""
        return cls(standing_request(store))

    def is_before(self, request: DrainRequest) -> bool:
        """Whether a person has asked for this since; whom it names may have changed meanwhile."""
        is_it = self.standing is not None and _asked(request) == _asked(self.standing)
        return request.requested_by not in NOT_FOR_GOOD and not is_it


def _asked(request: DrainRequest) -> tuple[str, str, int]:
    return request.requested_by, request.reason, request.requested_at_ms


class Replacement(Evidence, frozen=True, kw_only=True):
    """The ``number``-th start in the place of a driver that has ended, out of ``limit``.

    ``driver`` is the application id of the driver that beat last, :data:`NONE_YET` where none has.
    A task that starts its app again says so in ``eos/restart.json``; a run of Airflow that replaces
    a driver, in ``eos/resumption.json``. That file's count has to last: Airflow's own rows are
    deleted by its housekeeping. Both files are outdated once another driver beats.
    """

    words: ClassVar[tuple[str, ...]] = ("driver", "by")

    driver: str
    number: int
    limit: int | None
    by: str

    def __str__(self) -> str:
        """Say which restart it is and by whom, for people."""
        of = "" if self.limit is None else f" of {self.limit}"
        return f"restart {self.number}{of}, by {self.by}"


class Refusal(Evidence, frozen=True, kw_only=True):
    """A start in the place of ``driver`` that was refused for what no restart heals.

    An app that ends before its first heartbeat leaves none to say so: the task that has started it
    does. Outdated once another driver beats, and gone once a task starts the app again.
    """

    words: ClassVar[tuple[str, ...]] = ("driver", "reason", "dag_id", "run_id")

    driver: str
    reason: str
    dag_id: str
    run_id: str

    def __str__(self) -> str:
        """Say why the start was refused and in which run, for people."""
        whose = f"run {self.run_id} of {self.dag_id}"
        return f"no restart heals what its start was refused for: {self.reason} ({whose})"


NONE_YET = "first"
"""Stands for the application id where no driver has beaten yet."""


def driver_of(heartbeat: Heartbeat | None) -> str:
    """Return the application id of the driver that beat last, by which replacements name it."""
    return heartbeat.application_id if heartbeat is not None else NONE_YET


def note_restart(store: CheckpointStore, replacement: Replacement) -> None:
    """Record that a task is about to start its app again."""
    store.put(RESTART, encode(replacement))


def note_resumption(store: CheckpointStore, replacement: Replacement) -> None:
    """Record that a run of Airflow has begun to replace a driver."""
    store.put(RESUMPTION, encode(replacement))


def note_refusal(store: CheckpointStore, reason: str, *, dag_id: str, run_id: str) -> None:
    """Record that a run's start was refused for good; a failure to record it is only logged."""
    try:
        driver = driver_of(read_heartbeat(store))
        refusal = Refusal(driver=driver, reason=reason, dag_id=dag_id, run_id=run_id)
        store.put(REFUSED, encode(refusal))
    except EosError as error:
        log.warning("refusal_not_noted", reason=reason, error=str(error))


@contextmanager
def refusals_noted(store: CheckpointStore, *, dag_id: str, run_id: str) -> Iterator[None]:
    """Record the refusal where the ``with`` block raises an error that no restart heals."""
    try:
        yield
    except REFUSED_FOR_GOOD as error:
        note_refusal(store, f"{type(error).__name__}: {error}", dag_id=dag_id, run_id=run_id)
        raise


def forget_refusal(store: CheckpointStore) -> None:
    """Delete the last refusal: a start begins, and whether it is refused shows anew."""
    store.delete([REFUSED])


def refusal_of(store: CheckpointStore, heartbeat: Heartbeat | None) -> Refusal | None:
    """Return why nobody is to start an app in the place of this driver; None: no refusal."""
    found = store.read(REFUSED, Refusal)
    return found if found is not None and found.driver == driver_of(heartbeat) else None


def resumption_of(store: CheckpointStore, heartbeat: Heartbeat | None) -> Replacement | None:
    """Return the newest run that has begun to replace this driver; None: none has."""
    return _replacement(store, RESUMPTION, heartbeat)


def next_start(
    noted: Replacement | None, has_failed: Callable[[int], bool | None], limit: int
) -> int | None:
    """Return the number, from 0 on, of the run that replaces a driver; None: too many have failed.

    Args:
        noted: the newest replacement that has begun.
        has_failed: whether the run of that number has; False where it goes on or was a success,
            None where nobody knows it any more. A run that began, and is not known, is over.
        limit: how many replacements there may be.
    """
    number = 0 if noted is None else noted.number - 1
    if noted is not None and has_failed(number) is None:
        number += 1
    while number < limit and has_failed(number):
        number += 1
    return number if number < limit else None


def brought_back_by(store: CheckpointStore, heartbeat: Heartbeat | None) -> str | None:
    """Say who last started an app in the place of this driver, for people; None: nobody.

    Whether that one still tries, Airflow knows. One that was refused for good is left out.
    """
    try:
        refused = refusal_of(store, heartbeat) is not None
        found = _replacement(store, RESTART, heartbeat) or resumption_of(store, heartbeat)
    except CheckpointFormatError as error:
        log.warning("not_known_who_brings_it_back", error=str(error))
        return None
    return None if refused or found is None else str(found)


def why_refused(store: CheckpointStore, heartbeat: Heartbeat | None) -> str | None:
    """Say why nobody but a person starts an app in the place of this driver; None: nothing.

    For people: a refusal that cannot be read says nothing here.
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
"""The number of its own intervals without a look after which a watchdog counts as stopped."""


class WatchdogLook(Evidence, frozen=True, kw_only=True):
    """The newest look of a pipeline's watchdog; each look has another ``run_id``.

    ``interval_ms`` is how often the watchdog means to look; None where its schedule does not say.
    """

    words: ClassVar[tuple[str, ...]] = ("dag_id", "run_id")

    dag_id: str
    run_id: str
    interval_ms: Annotated[int, msgspec.Meta(ge=1)] | None


def note_look(store: CheckpointStore, look: WatchdogLook) -> None:
    """Record a watchdog's look, so that whoever reads the checkpoint sees when the looks stop."""
    store.put(WATCHDOG, encode(look))


def read_look(store: CheckpointStore) -> WatchdogLook | None:
    """Return the watchdog's newest look; None: there was none, or what was written is damaged."""
    try:
        return store.read(WATCHDOG, WatchdogLook)
    except CheckpointFormatError as error:
        log.warning("watchdog_not_known", error=str(error))
        return None


def watchdog_warning(look: WatchdogLook | None, silent_ms: float) -> str | None:
    """Return a warning of a watchdog whose newest look is that old; None: nothing to say."""
    if look is None or look.interval_ms is None:
        return None
    if silent_ms < MISSED_LOOKS * look.interval_ms:
        return None
    return (
        f"the watchdog {look.dag_id} has not looked for {silent_ms / look.interval_ms:.0f} of its "
        "intervals: is it paused, or does Airflow's scheduler stand still?"
    )


def missed_looks(store: CheckpointStore) -> str | None:
    """Return a warning where a watchdog has stopped, from one look; None where that tells nothing.

    By the store's own clock: for how long the driver has beaten since the watchdog's look.
    """
    look, at, beat = read_look(store), store.head(WATCHDOG), store.head(HEARTBEAT)
    if at is None or beat is None:
        return None
    return watchdog_warning(look, beat.modified_at_ms - at.modified_at_ms)


def is_watched(store: CheckpointStore) -> bool:
    """Whether a watchdog looks at the checkpoint within its own intervals, by the store's clock.

    That clock is asked by a probe, which is removed.
    """
    look = read_look(store)
    at = None if look is None or look.interval_ms is None else store.head(WATCHDOG)
    if at is None:
        return False
    probe = f"{EOS}/.probe-{uuid.uuid4().hex}"
    store.put(probe, b"what time is it")
    try:
        now = store.head(probe)
    finally:
        store.delete([probe])
    silent_ms = now.modified_at_ms - at.modified_at_ms if now is not None else None
    return silent_ms is not None and watchdog_warning(look, silent_ms) is None


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


def beat_interval(location: str) -> timedelta:
    """Return how often a driver at this location beats, and looks for a request to drain.

    A disk costs nothing; on HDFS each beat is a new block; an object store bills each beat and each
    look: every 2 s, six times what our side of a batch a minute costs (docs/checkpoint-stores.md).
    """
    return _BEATS.get(located(location).scheme, timedelta(seconds=10))


def read_heartbeat(store: CheckpointStore) -> Heartbeat | None:
    """Return the last heartbeat, or None if no driver has ever beaten here.

    Raises:
        CheckpointFormatError: the object cannot be read as a heartbeat.
    """
    return store.read(HEARTBEAT, Heartbeat)


def heard(store: CheckpointStore) -> tuple[Heartbeat | None, str]:
    """Return the last heartbeat, and why it cannot be read, as that must hide nothing else."""
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
    """Ask a driver to stop after the running batch; return the request that stands there.

    Each ``submission`` has a request of its own: its start may come up long after other requests.
    Asking the same driver again changes nothing, but that a hand-over gives way to whoever wants it
    to stop. A request to another term, which has ended or is superseded, gives way.
    """
    request = _request(requested_by, reason, term=term, submission=submission)
    if submission is not None:
        if store.create(drain_path(submission), encode(request)):
            return request
        standing = request_to(store, submission)
        if standing is not None and (
            standing.requested_by != BY_STANDBY or requested_by == BY_STANDBY
        ):
            return standing
        store.put(drain_path(submission), encode(request))  # also over one that nobody can read
        return request
    if store.create(DRAIN, encode(request)):
        return request
    standing = standing_request(store)
    if (
        standing is not None
        and (standing.term, standing.submission) == (term, None)
        and (requested_by in NOT_FOR_GOOD or standing.requested_by not in NOT_FOR_GOOD)
    ):
        return standing
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


# No store removes or replaces only what was read. So a person's request that replaces another one
# is written beside it first, and whoever has removed or replaced one looks there afterwards.


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
) -> DrainRequest | None:
    """Return the request that is for the driver of this term and submission, or None.

    A person's request goes first: what a person asks for ends in order, whoever else asks. One to a
    former term is for this driver, too, where it came after that one ``began``.
    """
    return _meant(partial(_read, store), term, submission, began=began)


def _meant(
    read: Callable[[str], DrainRequest | None],
    term: int | None,
    submission: str | None,
    *,
    or_after: bool = False,
    began: Beginning | None = None,
) -> DrainRequest | None:
    standing = read(DRAIN)
    if standing is not None and not (
        standing.is_for(term, submission)
        or (or_after and standing.is_for_who_came_after(term))
        or (began is not None and began.is_before(standing) and standing.is_of_before(term))
    ):
        standing = None
    if submission is None or (standing is not None and standing.requested_by != BY_STANDBY):
        return standing
    return read(drain_path(submission)) or standing  # whoever wants it to stop, before a hand-over


def drain_of(
    store: CheckpointStore, heartbeat: Heartbeat | None, *, known: bool = False
) -> DrainRequest | None:
    """Return the request for the driver of this heartbeat; where none has beaten, the one there.

    So is one for a driver that took a term since and has not beaten: it may never do so, and who
    has asked it to stop wants the app down.

    Args:
        store: the checkpoint.
        heartbeat: the last one.
        known: for callers that start an app where nobody asked it to stop: a damaged request may
            be a person's (CheckpointFormatError). To other callers it says nothing.
    """
    read = partial(_read, store, known=known)
    if heartbeat is None:
        return read(DRAIN)
    return _meant(read, heartbeat.term, heartbeat.submission, or_after=True)


def who_asked(heartbeat: Heartbeat | None, request: DrainRequest | None) -> frozenset[str]:
    """Return who has asked a driver to stop: by the request for it, and by its own heartbeat."""
    asked = None if request is None else request.requested_by
    said = None if heartbeat is None else heartbeat.drained_by
    return frozenset(each for each in (asked, said) if each is not None)


def standing_request(store: CheckpointStore) -> DrainRequest | None:
    """Return the request in ``eos/drain.json``, whichever driver it is for."""
    return _read(store, DRAIN)


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
        standing = store.read(DRAIN, DrainRequest)
    except CheckpointFormatError:
        _remove(store, term)
        return
    if standing is None or standing.is_for_who_came_after(term):
        return
    if began is not None and began.is_before(standing):
        if standing.is_of_before(term):
            store.put(DRAIN, encode(msgspec.structs.replace(standing, term=term)))
        return
    names_nobody = standing.term is None and standing.submission is None
    if names_nobody or not standing.is_for(term, submission):
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

    ``known``: see :func:`drain_of`.
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
