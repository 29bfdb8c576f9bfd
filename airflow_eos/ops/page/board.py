"""Reads many pipelines in parallel, caches their rows, and answers within a time limit.

A list of 500 must not wait for the one store that does not answer: its row is the one that was read
before, with its age, and a pipeline that was never read to the end is counted as pending.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from airflow_eos.core.checkpoint.progress import read_state
from airflow_eos.core.recovery.execute import plan_recovery
from airflow_eos.core.recovery.plan import Plan
from airflow_eos.errors import EosError, UnknownClusterError
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.ops.page.pipeline_state import STALL_AFTER_MS, PipelineSnapshot
from airflow_eos.ops.page.views import (
    DetailView,
    OpenBar,
    PipelineEntry,
    PipelineRow,
    PlanLine,
    PlanView,
    Reach,
)
from airflow_eos.ops.plan_tables import headline, seal_sentence, step_cells
from airflow_eos.ops.supervision.progress import held_up, held_up_sentence, unread_offsets
from airflow_eos.ops.supervision.trigger_watch import Threads

T = TypeVar("T")

MOMENT_S = 15.0
"""Age in seconds up to which a cached answer is returned without waiting for a newer one."""
GLANCE_S = 0.3
"""Seconds to wait for a newer answer even where the cached one is that young."""


@dataclass
class _Kept(Generic[T]):
    answer: T | None = None
    at_s: float = float("-inf")
    until_s: float = float("-inf")
    running: Future[None] | None = None


class Answers(Generic[T]):
    """A cache with the newest answer to each question, by the question's key.

    Args:
        threads: how many questions are asked at a time.
        fresh_s: for how many seconds an answer is returned again.
    """

    def __init__(
        self,
        threads: int,
        *,
        within_s: float,
        fresh_s: Callable[[T], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._within_s, self._fresh_s, self._clock = within_s, fresh_s, clock
        self._pool = Threads(threads, clock)
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept[T]] = {}

    def of(self, questions: Mapping[str, Callable[[], T]]) -> dict[str, T]:
        """Return the answers that are known in time; an older answer stands for one that is late.

        An exception of a question is raised here, once.
        """
        with self._lock:
            kept = {key: self._kept.setdefault(key, _Kept()) for key in questions}
            running = {
                key: future
                for key, each in kept.items()
                if (future := self._asked(each, questions[key])) is not None
            }
        self._pool.relieve()
        young = self._clock() - MOMENT_S
        unknown = [future for key, future in running.items() if kept[key].at_s < young]
        wait(unknown, timeout=self._within_s)
        wait(running.values(), timeout=min(GLANCE_S, self._within_s))
        for future in running.values():
            if future.done():
                future.result()
        return {key: each.answer for key, each in kept.items() if each.answer is not None}

    def forget(self, key: str) -> None:
        """Drop the cached answer, as somebody has just changed the pipeline.

        Also where the question is being asked: its answer may be older than the change.
        """
        with self._lock:
            self._kept.pop(key, None)

    def _asked(self, kept: _Kept[T], question: Callable[[], T]) -> Future[None] | None:
        """Return the running question, started now where the answer is too old; else None."""
        if kept.running is not None and not kept.running.done():
            return kept.running
        if self._clock() < kept.until_s:
            return None

        def ask() -> None:
            answer = question()
            kept.answer, kept.at_s = answer, self._clock()
            kept.until_s = kept.at_s + self._fresh_s(answer)

        kept.running = self._pool.submit(ask)
        return kept.running


# --- the plan -------------------------------------------------------------------------------------
# The plan is the one view that asks the participants and the input's cluster: for one pipeline,
# when somebody looks at it.


TIMEOUT_S = 10.0
"""Seconds that each system has to answer, as a person waits for the plan."""
NO_CLUSTER = (
    "This pipeline has to do with Kafka, and this page was not told which cluster. So nobody could "
    "ask what is open there: there is no plan, and the open work is what the checkpoint names."
)


def planned(listed: PipelineEntry) -> PlanView:
    """Make the current recovery plan, without executing it; ``error`` says why there is none."""
    try:
        reach = listed.reach()
        plan = plan_recovery(
            listed.location,
            reach.kafka,
            reach=reach.participants,
            storage_options=reach.storage,
            timeout_s=TIMEOUT_S,
        )
    except EosError as error:
        untold = isinstance(error, UnknownClusterError)
        why = f"{NO_CLUSTER} {listed.name_cluster}".rstrip() if untold else str(error)
        return PlanView(made_at_ms=time.time_ns() // 1_000_000, error=why, untold=untold)
    unread, blocked, remarks = _of_topics(listed, reach)
    return view(plan, unread, *remarks, blocked=blocked)


def view(plan: Plan, unread: int | None, *remarks: str, blocked: tuple[str, ...] = ()) -> PlanView:
    """Translate a plan into the cells and sentences of the shell's table; pure."""
    return PlanView(
        made_at_ms=plan.made_at_ms,
        headline=headline(plan).removeprefix(f"{plan.location}: "),  # the page says it already
        lines=tuple(PlanLine(**step_cells(step), why=step.reason) for step in plan.steps),
        remarks=(
            *((f"A start is refused: {plan.refusal}",) if plan.refusal else ()),
            *plan.remarks,
            *((seal_sentence(plan.seal),) if plan.seal else ()),
            *(f"What to do: {each}" for each in plan.said),
            *remarks,
        ),
        alive=plan.alive,
        needs_person=plan.needs_person,
        open=msgspec.convert(plan.listed, tuple[OpenBar, ...], from_attributes=True),
        unread=unread,
        blocked=blocked,
    )


def _of_topics(
    listed: PipelineEntry, reach: Reach
) -> tuple[int | None, tuple[str, ...], tuple[str, ...]]:
    """Return the unread offsets, who holds readers up, and remarks on what cannot be read."""
    if reach.kafka is None:
        return None, (), ()
    settings, remarks = reach.kafka, list[str]()
    unread: int | None = None
    blocked: tuple[str, ...] = ()
    if not isinstance(settings, KafkaSettings):
        settings = KafkaSettings.from_librdkafka(settings)
    try:
        unread = unread_offsets(settings, read_state(listed.open()).sources)
    except EosError as error:
        remarks.append(f"What is unread cannot be told: {error}")
    try:
        held = held_up(settings, listed.open(), deadline_s=TIMEOUT_S)
        blocked = tuple(map(held_up_sentence, held.partitions))
        remarks += [f"Not known: {what}" for what in held.unnamed]
    except EosError as error:
        remarks.append(f"Whether readers are blocked cannot be told: {error}")
    return unread, blocked, tuple(remarks)


FRESH_S = 3.0
"""Seconds for which a row is shown again before its checkpoint is read anew."""
FAILED_FRESH_S = 30.0
"""Seconds for which an unreadable row is shown again: it must not keep the threads busy."""
WITHIN_S = 2.0
"""Seconds after which the list is answered, whatever is still being read."""
PLAN_WITHIN_S = 15.0
"""Seconds that a plan may take: each of the systems that it asks has :data:`TIMEOUT_S`."""


class Board:
    """The views of all pipelines, cached for any number of callers at once.

    Args:
        fresh_s, within_s: see :data:`FRESH_S` and :data:`WITHIN_S`; a test gives its own.
    """

    def __init__(
        self,
        stall_after_ms: int = STALL_AFTER_MS,
        *,
        fresh_s: float = FRESH_S,
        within_s: float = WITHIN_S,
    ) -> None:
        self._stall_after_ms = stall_after_ms
        self._looks: dict[tuple[str, str], PipelineSnapshot] = {}

        def fresh(row: PipelineRow) -> float:
            return FAILED_FRESH_S if row.state == "unreadable" else fresh_s

        self._rows: Answers[PipelineRow] = Answers(16, within_s=within_s, fresh_s=fresh)
        self._details: Answers[DetailView] = Answers(
            4, within_s=max(within_s, 5.0), fresh_s=lambda _: min(fresh_s, 1.0)
        )
        self._plans: Answers[PlanView] = Answers(
            4, within_s=PLAN_WITHIN_S, fresh_s=lambda _: fresh_s
        )

    def rows(self, listed: Sequence[PipelineEntry]) -> tuple[tuple[PipelineRow, ...], int]:
        """Return the rows that are known in time, and the number of those that are not."""
        looks = {each.id: self._look("row", each) for each in listed}
        found = self._rows.of({key: look.row for key, look in looks.items()})
        rows = tuple(found[key] for key in looks if key in found)
        return rows, len(looks) - len(rows)

    def detail(self, listed: PipelineEntry) -> DetailView | None:
        """Return one pipeline with its batches; None: its store has not answered in time."""
        look = self._look("detail", listed)
        return self._details.of({listed.id: look.detail}).get(listed.id)

    def plan(self, listed: PipelineEntry) -> PlanView | None:
        """Return the plan of what recovery would do; None: no system has answered in time."""
        return self._plans.of({listed.id: lambda: planned(listed)}).get(listed.id)

    def forget(self, listed: PipelineEntry) -> None:
        """Drop what is cached of this pipeline, as somebody has just changed it."""
        for answers in (self._rows, self._details, self._plans):
            answers.forget(listed.id)

    def _look(self, kind: str, listed: PipelineEntry) -> PipelineSnapshot:
        """Return the pipeline's reader for one kind of question: two kinds may be asked at once."""
        look = self._looks.setdefault(
            (kind, listed.id), PipelineSnapshot(listed, self._stall_after_ms)
        )
        look.listed = listed  # the connections may have changed since
        return look
