"""The JSON values that a browser gets. Times in ms since the epoch, by the clock named."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.locations import printable

State = Literal[
    "unreadable",
    "failed",
    "silent",
    "stalled",
    "looking",
    "draining",
    "running",
    "idle",
    "stopped",
    "new",
]
"""The state of a pipeline, the most urgent first."""

Stage = Literal["planned", "preparing", "settling", "committed"]


class Promised(msgspec.Struct, frozen=True):
    """Work of the batch in flight that a COMMIT decision names: readers are owed its rows.

    ``ends_at_ms`` is when the first piece of work is ended by its system; None: no system ends any.
    ``participants`` are the names of the participants whose work it is.
    """

    works: int
    rows: int
    opened_at_ms: int
    ends_at_ms: int | None
    participants: tuple[str, ...] = ()


class Rate(msgspec.Struct, frozen=True, array_like=True):
    """Rows/s from one time to another (ms): of a batch, or 0 of a pause between two."""

    from_ms: int
    to_ms: int
    rows_per_s: float


class Watch(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a watchdog looks at the pipeline; ``looked_at_ms`` is by the store's clock.

    ``is_missed``: one was to look, and has stopped.
    """

    is_watched: bool
    is_missed: bool = False
    said: str
    looked_at_ms: int | None = None


class Starter(msgspec.Struct, frozen=True):
    """The task of Airflow that has started a driver."""

    dag_id: str
    task_id: str
    run_id: str
    map_index: int


class HeartbeatView(msgspec.Struct, frozen=True):
    """The last heartbeat, by the driver's clock."""

    application_id: str
    host: str
    phase: str
    beat_at_ms: int
    started_at_ms: int
    interval_ms: int
    trigger_ms: int
    started_by: Starter | None = None


class Drain(msgspec.Struct, frozen=True):
    """A request that the driver stop, and who has made it."""

    requested_by: str
    reason: str
    requested_at_ms: int


class PipelineRow(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline in the list, from its checkpoint alone.

    ``batch`` is the newest complete batch, committed at ``committed_at_ms`` (the store's clock).
    ``lag_rows`` counts the offsets of the batch in flight, None where there is none: only the
    plan's view counts those that are not planned yet. ``rates`` are rows/s of the newest batches,
    oldest first; ``rows_per_s`` is the mean of the last minute, None where the driver is not alive.
    ``since_ms`` is since when the state holds, where that is known. An ``unreadable`` pipeline has
    none of these. ``remarks`` say who restarts the pipeline and who stands by.
    """

    id: str
    name: str
    location: str
    dag_id: str | None = None
    task_id: str | None = None
    state: State
    reason: str
    batch: int | None = None
    committed_at_ms: int | None = None
    in_flight: int | None = None
    planned_at_ms: int | None = None
    lag_rows: int | None = None
    since_ms: int | None = None
    rates: tuple[Rate, ...] = ()
    rows_per_s: float | None = None
    promised: Promised | None = None
    drain: Drain | None = None
    heartbeat: HeartbeatView | None = None
    remarks: tuple[str, ...] = ()
    watch: Watch | None = None
    looked_at_ms: int


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    """The decision on one attempt that was begun; ``attempt`` counts these from 1.

    ``opened_at_ms`` is when the first and the last piece of its work were opened.
    """

    attempt: int
    verdict: Literal["commit", "abort"]
    decided_at_ms: int
    decided_by: str
    term: int | None
    reason: str
    works: int
    rows: int
    opened_at_ms: tuple[int, int] | None


class BatchView(msgspec.Struct, frozen=True, kw_only=True):
    """One batch as far as the checkpoint tells.

    ``planned_at_ms`` is by the driver's clock, ``committed_at_ms`` by the store's. A committed
    batch was settled before; when exactly is written nowhere. ``rows`` None: not known.
    """

    batch: int
    stage: Stage
    planned_at_ms: int
    committed_at_ms: int | None
    rows: int | None
    attempts: tuple[AttemptView, ...]


class BatchPoint(msgspec.Struct, frozen=True, array_like=True):
    """One batch of the drawings: times as in :class:`BatchView`."""

    planned_at_ms: int
    committed_at_ms: int | None
    rows: int | None


class EventView(msgspec.Struct, frozen=True):
    """A start, an end, a recovery, …: what happened, by whom and why."""

    at_ms: int
    what: str
    who: str
    why: str = ""


class OutputOfCut(msgspec.Struct, frozen=True):
    """One output of a cut: whether its place is known, and why it is not."""

    name: str
    is_known: bool
    why: str


class CutView(msgspec.Struct, frozen=True, kw_only=True):
    """The newest consistent cut; ``incomplete``: a batch whose rows may be missing for good."""

    batch: int
    written_at_ms: int
    incomplete: int | None
    outputs: tuple[OutputOfCut, ...]


class LinkView(msgspec.Struct, frozen=True):
    """A link to a page of Airflow's."""

    label: str
    address: str


class Around(msgspec.Struct, frozen=True, kw_only=True):
    """What is around a pipeline: links, and which task supervises it; None: not known."""

    links: tuple[LinkView, ...] = ()
    supervised: str | None = None


class ParticipantView(msgspec.Struct, frozen=True):
    """A participant of a pipeline's decisions; ``address`` is without secrets."""

    name: str
    kind: str
    target: str
    address: dict[str, str]


class SourceView(msgspec.Struct, frozen=True):
    """A source of the newest batch; ``ends`` has offsets by topic and partition for Kafka."""

    name: str
    rows: int | None
    ends: dict[str, dict[str, int]] | None


class ButtonView(msgspec.Struct, frozen=True, kw_only=True):
    """A button: ``says`` what it will do. ``token`` is sent in a header; None: see ``not_now``."""

    name: str
    label: str
    says: tuple[str, ...]
    token: str | None
    not_now: str = ""


class DetailView(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline with its newest batches, the newest first; ``runs`` is the app's version.

    ``spark_ui`` is the address of Spark's UI, where a driver is alive and has said one.
    """

    row: PipelineRow
    pipeline_id: str | None = None
    participants: tuple[ParticipantView, ...] = ()
    sources: tuple[SourceView, ...] = ()
    batches: tuple[BatchView, ...] = ()
    state_size: dict[str, Any] | None = None
    points: tuple[BatchPoint, ...] = ()
    rates: tuple[Rate, ...] = ()
    events: tuple[EventView, ...] = ()
    runs: str = ""
    spark_ui: str = ""
    cut: CutView | None = None
    around: Around = Around()
    actions: tuple[ButtonView, ...] = ()


class BoardView(msgspec.Struct, frozen=True, kw_only=True):
    """The list of pipelines. ``pending`` pipelines were not read yet, and are not in ``rows``."""

    now_ms: int
    read_only: bool
    rows: tuple[PipelineRow, ...]
    pending: int
    remarks: tuple[str, ...] = ()


class OpenBar(msgspec.Struct, frozen=True, kw_only=True):
    """Open work as its system lists it; ``ends_at_ms`` None: its system never ends it."""

    key: str
    participant: str
    opened_at_ms: int
    ends_at_ms: int | None
    places: tuple[str, ...]


class PlanLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the recovery plan, word for word as in the shell's table."""

    action: str
    work: str
    age: str
    left: str
    rows: str
    why: str


class PlanView(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of what recovery would do; ``error`` says why it could not be made.

    The error is ``untold`` where nothing went wrong: the page was started without a Kafka cluster.
    ``unread`` counts offsets of the input that are not planned yet; None where it is not known.
    ``blocked`` says who holds the readers of its topics up, one sentence for each partition.
    """

    made_at_ms: int
    headline: str = ""
    lines: tuple[PlanLine, ...] = ()
    remarks: tuple[str, ...] = ()
    alive: tuple[str, ...] = ()
    needs_person: bool = False
    open: tuple[OpenBar, ...] = ()
    unread: int | None = None
    blocked: tuple[str, ...] = ()
    error: str | None = None
    untold: bool = False


class ActionResult(msgspec.Struct, frozen=True):
    """The result of a button, in a sentence."""

    said: str


# --- which pipelines are shown --------------------------------------------------------------------
# A list that the host of the page gives.


@dataclass(frozen=True, slots=True)
class Reach:
    """Connection settings of a checkpoint and its participants; may contain secrets.

    ``kafka`` is None where nothing says how to reach a cluster.
    """

    storage: Mapping[str, str] | None = field(default=None, repr=False)
    kafka: Any = field(default=None, repr=False)
    participants: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineEntry:
    """A pipeline that the page lists, and its connection settings.

    Attributes:
        storage: returns the store's options; called for each read, may raise EosError.
        reach: returns the store's and the participants' settings; called only for the plan.
        dag_id, task_id: the task that runs it; None where there is no Airflow.
        watchdogs: the DAGs that watch it, each with whether it is paused.
        remarks: what else the host has to say of it.
        name_cluster: what a reader of the page can do where no Kafka cluster is named.
    """

    name: str
    location: str
    storage: Callable[[], Mapping[str, str] | None]
    reach: Callable[[], Reach]
    dag_id: str | None = None
    task_id: str | None = None
    recovery_dag_id: str | None = None
    watchdogs: tuple[tuple[str, bool], ...] = ()
    remarks: tuple[str, ...] = ()
    name_cluster: str = ""

    @property
    def id(self) -> str:
        """The pipeline's id in addresses, see :func:`pipeline_id`."""
        return pipeline_id(self.location, self.dag_id, self.task_id)

    @property
    def shown(self) -> str:
        """The location as people may see it: it may hold a login, and is never opened then."""
        return printable(self.location)

    def open(self) -> CheckpointStore:
        """Open the checkpoint (EosError where a connection or a location cannot work)."""
        return CheckpointStore.open(self.location, storage_options=self.storage())


def pipeline_id(location: str, dag_id: str | None = None, task_id: str | None = None) -> str:
    """Return the pipeline's id in addresses: a hash that hides the location and has no slash."""
    told = "\n".join((dag_id or "", task_id or "", location))
    return hashlib.blake2s(told.encode(), digest_size=8).hexdigest()
