"""What a browser gets, as frozen values. Times in ms since the epoch, by the clock named."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from airflow_eos.checkpoint import CheckpointStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
"""In the order in which somebody should look."""

Stage = Literal["planned", "preparing", "settling", "committed"]


class Promised(msgspec.Struct, frozen=True):
    """Work of the batch in flight that a COMMIT decision names: readers are owed its rows.

    ``ends_at_ms`` is when the first of it is ended by its system; None: by none. ``participants``
    are the names of those whose work it is.
    """

    works: int
    rows: int
    opened_at_ms: int
    ends_at_ms: int | None
    participants: tuple[str, ...] = ()


class Beat(msgspec.Struct, frozen=True):
    """The last heartbeat, by the driver's clock."""

    application_id: str
    host: str
    phase: str
    beat_at_ms: int
    started_at_ms: int
    interval_ms: int
    trigger_ms: int


class Drain(msgspec.Struct, frozen=True):
    """Who has asked the driver to stop."""

    requested_by: str
    reason: str
    requested_at_ms: int


class PipelineRow(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline in the list, from its checkpoint alone.

    ``batch`` is the newest that is complete, at ``committed_at_ms`` (the store's clock).
    ``lag_rows`` counts offsets that are planned and not committed: what is not planned yet only
    the plan's view asks for. ``rates`` are rows/s of the newest batches, oldest first;
    ``rows_per_s`` is their mean over that time, None where the driver is not alive. None of it is
    known of what is ``unreadable``. ``remarks`` say who brings it back, who stands by, and that its
    watchdog does not look any more.
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
    rates: tuple[float, ...] = ()
    rows_per_s: float | None = None
    promised: Promised | None = None
    drain: Drain | None = None
    heartbeat: Beat | None = None
    remarks: tuple[str, ...] = ()
    looked_at_ms: int


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    """One decision; ``sealed`` is the abort that each start begins with, and no fault.

    ``opened_at_ms`` is when the first and the last of its work was opened.
    """

    attempt: int
    verdict: Literal["commit", "abort", "sealed"]
    decided_at_ms: int
    decided_by: str
    term: int | None
    reason: str
    works: int
    rows: int
    opened_at_ms: tuple[int, int] | None


class BatchView(msgspec.Struct, frozen=True, kw_only=True):
    """One batch as far as the checkpoint tells.

    ``planned_at_ms`` by the driver's clock, ``committed_at_ms`` by the store's. A batch that is
    committed was settled before; when exactly is written nowhere. ``rows`` None: not known.
    """

    batch: int
    stage: Stage
    planned_at_ms: int
    committed_at_ms: int | None
    rows: int | None
    attempts: tuple[AttemptView, ...]


class ParticipantView(msgspec.Struct, frozen=True):
    """A participant of a pipeline's decisions; ``address`` is without secrets."""

    name: str
    kind: str
    target: str
    address: dict[str, str]


class SourceView(msgspec.Struct, frozen=True):
    """A source of the newest batch; ``ends`` by topic and partition where it is Kafka."""

    name: str
    rows: int | None
    ends: dict[str, dict[str, int]] | None


class ButtonView(msgspec.Struct, frozen=True, kw_only=True):
    """A button: ``says`` what will happen. ``token`` travels in a header; None: not now."""

    name: str
    label: str
    says: tuple[str, ...]
    token: str | None
    not_now: str = ""


class DetailView(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline with its newest batches, the newest first."""

    row: PipelineRow
    pipeline_id: str | None = None
    participants: tuple[ParticipantView, ...] = ()
    sources: tuple[SourceView, ...] = ()
    batches: tuple[BatchView, ...] = ()
    state_size: dict[str, Any] | None = None
    actions: tuple[ButtonView, ...] = ()


class BoardView(msgspec.Struct, frozen=True, kw_only=True):
    """The list. ``pending`` of them were not looked at yet, and are not in ``rows``."""

    now_ms: int
    read_only: bool
    rows: tuple[PipelineRow, ...]
    pending: int
    remarks: tuple[str, ...] = ()


class OpenBar(msgspec.Struct, frozen=True, kw_only=True):
    """Open work as its system lists it; ``ends_at_ms`` None: nothing ends it by itself."""

    key: str
    participant: str
    opened_at_ms: int
    ends_at_ms: int | None
    places: tuple[str, ...]


class PlanLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the shell's table, word for word."""

    action: str
    work: str
    age: str
    left: str
    rows: str
    why: str


class PlanView(msgspec.Struct, frozen=True, kw_only=True):
    """What recovery would do; ``error`` says why nobody could tell.

    It is ``untold`` where nothing went wrong: whoever started the page said of no cluster.
    ``unread`` counts offsets of the input that are not planned yet; None where it is not known.
    ``blocked`` says who holds the readers of its topics up, a sentence a partition.
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
    """What a button has done, in a sentence."""

    said: str


# --- listed ---------------------------------------------------------------------------------------
# Which pipelines the page shows, as whoever starts it says so.


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
    """One pipeline.

    Attributes:
        name: for people.
        location: of its checkpoint.
        storage: options of the checkpoint's store; called for each look, may raise EosError.
        reach: the same, and how to reach the participants: only for the plan.
        dag_id, task_id: who runs it; None where there is no Airflow.
        recovery_dag_id: who recovers it.
        name_cluster: what whoever looks at the page can do where no Kafka cluster is named.
    """

    name: str
    location: str
    storage: Callable[[], Mapping[str, str] | None]
    reach: Callable[[], Reach]
    dag_id: str | None = None
    task_id: str | None = None
    recovery_dag_id: str | None = None
    name_cluster: str = ""

    @property
    def id(self) -> str:
        """A name for addresses, see :func:`pipeline_id`."""
        return pipeline_id(self.location, self.dag_id, self.task_id)

    def open(self) -> CheckpointStore:
        """The checkpoint (EosError where a connection or a location cannot work)."""
        return CheckpointStore.open(self.location, storage_options=self.storage())


def pipeline_id(location: str, dag_id: str | None = None, task_id: str | None = None) -> str:
    """What an address calls a pipeline: it says nothing of the location, and has no slash in it."""
    told = "\n".join((dag_id or "", task_id or "", location))
    return hashlib.blake2s(told.encode(), digest_size=8).hexdigest()
