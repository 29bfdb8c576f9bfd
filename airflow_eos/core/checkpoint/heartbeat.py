"""The heartbeat of a driver, ``eos/driver.json``, and the start that it is.

It is evidence for people and sensors, never for correctness: a heartbeat may lie (a stopped driver
that wakes up, clocks that differ), so no decision depends on one.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from datetime import timedelta
from typing import Annotated, ClassVar, Literal
from urllib.parse import parse_qs, urlencode

import msgspec

from airflow_eos.core.checkpoint.backend import HEARTBEAT
from airflow_eos.core.checkpoint.drain import DrainRequest, drain_requested, standing_request
from airflow_eos.core.checkpoint.locations import HDFS, LOCAL, located
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.protocol.decision import Evidence, encode, one_line
from airflow_eos.errors import CheckpointFormatError, ConfigurationError

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
        return not drawn or other.submission.startswith(self._task_digest)

    def begun_anew(self) -> StartedBy:
        """Return the next start of this task, with a new submission."""
        submission = f"{self._task_digest}{uuid.uuid4().hex}"
        return msgspec.structs.replace(self, submission=submission)

    @property
    def _task_digest(self) -> str:
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


Phase = Literal["starting", "waiting", "preparing", "settling", "stopped", "failed"]

End = Literal["finished", "drained", "failed", "superseded"]

ENDED: frozenset[Phase] = frozenset({"stopped", "failed"})
"""The phases after which a driver writes no heartbeat any more."""

_BEATS = {LOCAL: timedelta(seconds=2), HDFS: timedelta(seconds=5)}

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


def drain_of(
    store: CheckpointStore, heartbeat: Heartbeat | None, *, known: bool = False
) -> DrainRequest | None:
    """Return the request for the driver of this heartbeat; where none has beaten, the one there.

    So is one for a driver that took a term since and has not beaten: it may never do so, and who
    has asked it to stop wants the app down.

    Args:
        known: for callers that start an app where nobody asked it to stop: a damaged request may
            be a person's (CheckpointFormatError). To other callers it says nothing.
    """
    if heartbeat is None:
        return standing_request(store, known=known)
    term, submission = heartbeat.term, heartbeat.submission
    return drain_requested(store, term=term, submission=submission, or_after=True, known=known)


def who_asked(heartbeat: Heartbeat | None, request: DrainRequest | None) -> frozenset[str]:
    """Return who has asked a driver to stop: by the request for it, and by its own heartbeat."""
    asked = None if request is None else request.requested_by
    said = None if heartbeat is None else heartbeat.drained_by
    return frozenset(each for each in (asked, said) if each is not None)
