"""From answers to words: what became of each step, and how that differs from the plan; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from airflow_eos.protocol.work import Outcome
from airflow_eos.recovery.report import Result, StepResult
from airflow_eos.recovery.steps import Action, Plan, Step

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_eos.protocol.work import WorkIdentity


def what_became(step: Step, done: Mapping[WorkIdentity, bool | Outcome]) -> StepResult:
    """Say how a step ended: an outcome of what was settled, False for what ended before us."""
    became = None if step.work is None else done.get(step.work)
    if step.action is Action.REPLAY:
        return StepResult(step, Result.WAITS, "start the app")
    if step.action is Action.ASK:
        return StepResult(step, Result.NEEDS_PERSON, "rule with --assume")
    if isinstance(became, Outcome):
        return _committed(step, became)
    if became is not None:
        return StepResult(step, Result.DONE if became else Result.ALREADY_ENDED)
    return StepResult(step, Result.NOT_ALLOWED, f"allow {step.action.value} to do it")


def _committed(step: Step, outcome: Outcome) -> StepResult:
    match outcome:
        case Outcome.COMMITTED:
            return StepResult(step, Result.DONE)
        case Outcome.ABORTED:
            why = "it had been aborted" if step.rows else "rows of the batch are missing"
            return StepResult(step, Result.CHANGED, f"{why}: the app replays it")
        case Outcome.UNKNOWN | Outcome.OPEN:
            return StepResult(step, Result.NEEDS_PERSON, "no one can tell its outcome: plan again")


def against_plan(plan: Plan, results: Sequence[StepResult]) -> tuple[StepResult, ...]:
    """Note where the facts of now made us do something else than the given plan said.

    Steps of that plan which the facts no longer give are added: nothing is left to do for them.
    """
    before = {_subject(step): step for step in plan.steps}
    noted = []
    for each in results:
        planned = before.pop(_subject(each.step), None)
        if planned is not None and planned.action is not each.step.action and not each.detail:
            remark = f"the plan said {planned.action.value}; decided since"
            noted.append(msgspec.structs.replace(each, detail=remark))
        else:
            noted.append(each)
    gone = "no longer needed: the facts have moved on"
    return (*noted, *(StepResult(step, Result.CHANGED, gone) for step in before.values()))


def _subject(step: Step) -> WorkIdentity | tuple[int | None, str | None]:
    """What a step is about: prepared work, or a participant's part of the batch of a replay."""
    return step.work or (step.batch_id, step.participant)
