"""One batch from plan to commit, as steps; pure.

The steps are those of docs/how-it-works.md, with Spark's own before and after them: ``plan``,
``look``, ``prepare``, ``decide``, ``settle``, ``commit``. A promise that is found is settled
first; where it is replayed, ``prepare``, ``decide`` and ``settle`` follow that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

Step = Literal["plan", "look", "prepare", "decide", "settle", "commit"]


@dataclass(frozen=True, slots=True)
class Span:
    """A step, and when: nanoseconds since the epoch."""

    step: Step
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Told:
    """A batch that is over. ``facts`` say more of it: attempt, rows, whether it was a replay."""

    batch_id: int
    spans: tuple[Span, ...]
    facts: Mapping[str, Any]
    error: BaseException | None

    @property
    def start_ns(self) -> int:
        """When Spark began to plan it; when it was called for, where Spark does not say."""
        return self.spans[0].start_ns

    @property
    def end_ns(self) -> int:
        """When Spark had committed it; the last that is known, where Spark does not say."""
        return self.spans[-1].end_ns


@dataclass(slots=True)
class Story:
    """A batch that goes on."""

    batch_id: int
    began_ns: int
    marks: list[tuple[Step, int]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.marks.append(("look", self.began_ns))

    def enter(self, step: Step, at_ns: int) -> None:
        """The step before ends, and this one begins; never earlier than the one before."""
        self.marks.append((step, max(at_ns, self.marks[-1][1])))

    def has_been(self, step: Step) -> bool:
        """Whether the step was entered before."""
        return any(mark == step for mark, _ in self.marks)

    def end(self, at_ns: int, error: BaseException | None = None) -> Told:
        """The batch as it is told where Spark says nothing of it."""
        return Told(self.batch_id, self._spans(at_ns), self.facts, error)

    def committed(self, progress: Mapping[str, Any]) -> Told:
        """The batch with Spark's part: its plan before, its commit after."""
        planned_ns = int(datetime.fromisoformat(progress["timestamp"]).timestamp() * 1000) * 10**6
        end_ns = planned_ns + int(progress["durationMs"]["triggerExecution"]) * 10**6
        plan = Span("plan", min(planned_ns, self.began_ns), self.began_ns)
        return Told(self.batch_id, (plan, *self._spans(end_ns)), self.facts, None)

    def _spans(self, end_ns: int) -> tuple[Span, ...]:
        begins = [at for _, at in self.marks]
        ends = [*begins[1:], max(end_ns, begins[-1])]
        return tuple(
            Span(step, begin, end) for (step, begin), end in zip(self.marks, ends, strict=True)
        )


def lags(progress: Mapping[str, Any]) -> dict[str, int]:
    """By source: rows between what the batch ended at and what was there when it was planned.

    Sources that do not count their rows by Kafka's offsets are left out.
    """
    found = {}
    for index, source in enumerate(progress["sources"]):
        latest, end = source.get("latestOffset"), source.get("endOffset")
        if not (_is_offsets(latest) and _is_offsets(end)):
            continue
        found[str(index)] = sum(
            max(0, at - end.get(topic, {}).get(partition, at))
            for topic, partitions in latest.items()
            for partition, at in partitions.items()
        )
    return found


def _is_offsets(told: Any) -> bool:
    return isinstance(told, dict) and all(
        isinstance(each, dict) and all(isinstance(at, int) for at in each.values())
        for each in told.values()
    )
