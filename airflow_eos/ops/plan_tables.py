"""Plans and reports as tables that a person can decide from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from airflow_eos.core.protocol.participant import Member
from airflow_eos.core.recovery.plan import Action, Plan, Seal, Step
from airflow_eos.ops.tables import duration, plain, table, time_left

if TYPE_CHECKING:
    from airflow_eos.core.recovery.execute import Report

_STYLE = {
    Action.COMMIT: "green",
    Action.ABORT: "yellow",
    Action.REPLAY: "cyan",
    Action.ASK: "bold red",
    Action.ORPHAN: "magenta",
}


def plan_view(plan: Plan) -> RenderableType:
    """Show a plan: what is open or owed, how long the broker still waits, what is done and why."""
    parts: list[RenderableType] = [plain(headline(plan), style="bold")]
    if plan.refusal is not None:
        parts.append(plain(f"A START IS REFUSED: {plan.refusal}", style="bold red"))
    parts += [plain(each, style="bold yellow") for each in plan.remarks]
    if plan.steps:
        steps = table("action", "work", "age", "left", "rows", "why")
        for step in plan.steps:
            steps.add_row(*_cells(step), plain(step.reason))
        parts.append(steps)
        if plan.seal:
            parts.append(Text(seal_sentence(plan.seal)))
    elif plan.refusal is None:
        parts.append(Text("Nothing to do: nothing is open, nothing that was promised is missing."))
        parts += map(Text, awaits_a_start(plan))
    parts += [plain(f"DAMAGED: {each}", style="yellow") for each in plan.mends]
    alarming = "bold red" if plan.steps else ""  # beside nothing to do, a driver that lives is well
    parts += [plain(f"ALIVE: {sign}", style=alarming) for sign in plan.alive]
    parts += [plain(f"What to do: {each}", style="bold") for each in plan.said]
    return Group(*parts)


def report_view(report: Report) -> RenderableType:
    """Show a report: what was done."""
    head = f"Recovery of {report.location}, {_names(report.participants)}"
    if report.sealed:
        head += f": sealed the running attempt at batch {report.sealed.batch_id}"
    mended = [plain(f"MENDED: {each}", style="yellow") for each in report.mended]
    if not report.results:
        done = mended or [Text("Nothing had to be done.")]
        return Group(plain(head, style="bold"), *done)
    steps = table("action", "work", "age", "left", "rows", "result")
    for each in report.results:
        detail = f" ({each.detail})" if each.detail else ""
        steps.add_row(*_cells(each.step), plain(each.result.value + detail))
    return Group(plain(head, style="bold"), steps, *mended)


def awaits_a_start(plan: Plan) -> list[str]:
    """Say what ends a batch that is in flight; nothing where there is none, or a driver lives."""
    if plan.in_flight is None or plan.alive:
        return []
    return [f"Batch {plan.in_flight} ends when the app is started again."]


def headline(plan: Plan) -> str:
    """Say whose plan it is, and which batch is in flight."""
    batch = (
        f"batch {plan.in_flight} in flight" if plan.in_flight is not None else "no batch in flight"
    )
    return f"{plan.location}: {_names(plan.participants)}, {batch}"


def _names(participants: Sequence[Member]) -> str:
    return " and ".join(f"{each.kind} {each.name!r}" for each in participants)


def seal_sentence(seal: Seal) -> str:
    """Say what is sealed before anything is aborted."""
    return (
        f"Before anything is aborted, the running attempt at batch {seal.batch_id} is sealed, so "
        "that no driver can still promise it."
    )


def step_cells(step: Step) -> dict[str, str]:
    """Return a step's cells but its reason, by the name of the column."""
    if step.work is not None:
        subject = step.work.key
    else:
        subject = f"batch {step.batch_id}: {step.works} pieces of work of {step.participant!r}"
    return {
        "action": step.action.name,
        "work": subject,
        "age": duration(step.age_ms),
        "left": time_left(step.time_left_ms),
        "rows": "" if step.rows is None else f"{step.rows:,}",
    }


def _cells(step: Step) -> tuple[RenderableType, ...]:
    action, *others = step_cells(step).values()
    return (Text(action, style=_STYLE[step.action]), *map(plain, others))
