"""A start as ``start_exactly_once`` makes it, up to the function of its batches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.checkpoint.topics import LostInput
from airflow_eos.core.delivery.committed_offsets import CommittedOffsets
from airflow_eos.core.delivery.input_check import InputCheck
from airflow_eos.core.delivery.port import OffsetCommitTarget
from airflow_eos.core.delivery.replay import ReplayChecks
from airflow_eos.core.delivery.start import begin, guarantee_of
from airflow_eos.core.delivery.start_option import Start, StartOption

NO_WAIT: Any = SimpleNamespace(interval=timedelta(0))
NO_PLAN: Any = SimpleNamespace(at=lambda batch_id: batch_id)
NOTHING_READ: Any = SimpleNamespace(frame=None, own=None, sources=(), reads=())


class Unchanged(InputCheck):
    """An input that nobody looks at."""

    def __init__(self) -> None:
        self.look = lambda: None

    def before_term(self, start: Start) -> None: ...

    def mends(self) -> tuple[()]:
        return ()

    def lost(self, _store: CheckpointStore) -> LostInput:
        return LostInput()


class Wrapping(StartOption):
    """Wraps the sink of the batches."""

    def __init__(self, wrap: Callable[[Any], Any]) -> None:
        self.around = wrap

    def wrap(self, _start: Start, sink: Any) -> Any:
        return self.around(sink)


def start_of(
    spark: Any,
    sink: Any,
    store: CheckpointStore,
    heartbeat: Any,
    *,
    plan: Any = None,
    consumer_group: OffsetCommitTarget | None = None,
    wrap: Callable[[Any], Any] = lambda sink: sink,
    resources: Any = None,
) -> Start:
    """A start whose input and plan are nobody's: what is asked of the checkpoint is real."""
    checked, offsets = Unchanged(), CommittedOffsets(consumer_group)
    start = Start(
        spark,
        store,
        NO_WAIT,
        NOTHING_READ,
        sink,
        observer=getattr(heartbeat, "observer", None),
        options=(offsets, checked, Wrapping(wrap)),
        guarantee=guarantee_of(sink.guarantee, checked, offsets),
        resources=resources or ExitStack(),
        plan=plan or NO_PLAN,
    )
    start.heartbeat = heartbeat
    return start


def begun(*given: Any, **named: Any) -> Any:
    """The function of the batches of :func:`start_of`, which takes every promise for its own."""
    batch: Any = begin(start_of(*given, **named))
    if hasattr(batch, "_reading"):
        batch._reading = ReplayChecks()
    return batch
