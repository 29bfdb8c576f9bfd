"""What an execution of recovery did, step by step, as a frozen value."""

from __future__ import annotations

import enum

import msgspec

from airflow_eos.checkpoint.mending import Mend
from airflow_eos.errors import DecisionNeededError
from airflow_eos.protocol.participant import Member
from airflow_eos.recovery.steps import Seal, Step


class Result(enum.Enum):
    """How a step ended."""

    DONE = "done"
    ALREADY_ENDED = "already ended"
    """It was no longer open with this epoch: its timeout, its driver or another recovery was
    faster. Nothing else can have been hit."""
    CHANGED = "changed"
    """The facts had moved on since the plan; the detail says what was found."""
    WAITS = "waits for the app"
    """A replay: the app does it when it resumes."""
    NEEDS_PERSON = "needs a person"
    NOT_ALLOWED = "not allowed"
    """The caller did not allow this action."""


class StepResult(msgspec.Struct, frozen=True):
    """One step as it stood when it was executed, and what became of it."""

    step: Step
    result: Result
    detail: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was done.

    ``sealed`` is the attempt that was taken, if any; ``mended`` what was written again of Spark's.
    """

    format_version: int = 3
    location: str
    participants: tuple[Member, ...]
    executed_by: str
    executed_at_ms: int
    sealed: Seal | None
    mended: tuple[Mend, ...] = ()
    results: tuple[StepResult, ...]

    def count(self, *results: Result) -> int:
        """How many steps ended like this."""
        return sum(each.result in results for each in self.results)

    @property
    def complete(self) -> bool:
        """Whether nothing is left that somebody must still allow or decide."""
        return self.count(Result.NEEDS_PERSON, Result.NOT_ALLOWED) == 0

    def require_complete(self) -> None:
        """Raise if steps were left alone.

        Raises:
            DecisionNeededError: Steps need a person or were not allowed; they are named.
        """
        left = [
            each
            for each in self.results
            if each.result in (Result.NEEDS_PERSON, Result.NOT_ALLOWED)
        ]
        if left:
            named = "; ".join(f"{each.step.action.name} {each.step.work}" for each in left[:5])
            raise DecisionNeededError(
                f"{len(left)} of {len(self.results)} recovery steps were left alone: {named}.",
                *dict.fromkeys(remedy for each in left for remedy in each.step.remedies),
            )

    def to_json(self) -> bytes:
        """Indented JSON; holds no secret."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2)
