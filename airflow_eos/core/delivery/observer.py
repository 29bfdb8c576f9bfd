"""Events that an observer of a driver is told, each with its time in ns since the epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from airflow_eos.core.log import Log

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint.heartbeat import Phase
    from airflow_eos.core.protocol.decision import (
        Decision,
        OpenWork,
        Outcome,
        PreparedWork,
        WorkIdentity,
    )

log = Log(__name__)

Verb = Literal["get", "head", "list", "create", "put", "delete"]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event, at ``at_ns``."""

    at_ns: int = msgspec.field(default_factory=time.time_ns)


class Started(Event, frozen=True):
    """The driver has begun: its term is taken, and it stands by no more."""


class Began(Event, frozen=True):
    """Spark has planned a batch and calls for it."""

    batch_id: int


class Phased(Event, frozen=True):
    """The batch enters a phase, as the heartbeat tells it."""

    batch_id: int
    phase: Phase


class TasksPrepared(Event, frozen=True):
    """All tasks have prepared; ``leftovers`` are other open work. Listed since ``since_ns``."""

    leftovers: tuple[OpenWork, ...]
    since_ns: int


class Decided(Event, frozen=True):
    """An attempt was decided: by this driver where its decision ``stands``, else by another."""

    decision: Decision
    stands: bool


class CommitResult(Event, frozen=True):
    """The outcomes of work that was to be made visible."""

    works: tuple[PreparedWork, ...]
    outcomes: Mapping[WorkIdentity, Outcome]


class Failed(Event, frozen=True):
    """The batch raised an error."""

    batch_id: int
    error: BaseException


class Progressed(Event, frozen=True):
    """Spark's progress of the newest batch that it has committed (``StreamingQueryProgress``)."""

    progress: Mapping[str, Any]


class StoreRequest(Event, frozen=True):
    """A request to the checkpoint's store; ``sent`` and ``got`` are bytes of content."""

    verb: Verb
    seconds: float
    sent: int
    got: int
    failed: bool


class QueryEnded(Event, frozen=True):
    """The query has ended; ``as_meant`` where it read everything, or a person has stopped it."""

    as_meant: bool = False


class Watched(Event, frozen=True):
    """The number of looks that the pipeline's watchdog has missed, at the interval it has told."""

    missed: float


Observer = Callable[[Event], None]


class Careful:
    """An observer whose errors are logged, once, and harm nobody."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._has_failed = False

    def __call__(self, event: Event) -> None:
        """Tell the observer of ``event``; log its first error."""
        try:
            self._observer(event)
        except Exception:
            if not self._has_failed:
                self._has_failed = True
                log.exception("figures_failed", hint="the batch goes on; not logged again")
