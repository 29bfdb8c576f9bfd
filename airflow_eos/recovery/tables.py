"""Plans, reports and audits as tables that a person can decide from; 100 columns are enough."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from airflow_eos.recovery.steps import Action

if TYPE_CHECKING:
    from airflow_eos.recovery.auditing import AuditReport
    from airflow_eos.recovery.report import Report
    from airflow_eos.recovery.steps import Plan, Step

WIDTH = 100

_STYLE = {
    Action.COMMIT: "green",
    Action.ABORT: "yellow",
    Action.REPLAY: "cyan",
    Action.ASK: "bold red",
    Action.ORPHAN: "magenta",
}


def show(view: RenderableType) -> None:
    """Print to the terminal; a pipe or a log file gets 100 columns."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    console.print(view)


def as_text(view: RenderableType, width: int = WIDTH) -> str:
    """Plain text for logs, at most ``width`` columns wide."""
    console = Console(file=io.StringIO(), width=width, no_color=True, legacy_windows=False)
    with console.capture() as capture:
        console.print(view)
    return capture.get()


def plain(text: str, style: str = "") -> Text:
    """Text from a checkpoint, a broker or a topic: no markup, and no command to a terminal."""
    return Text(printable(text), style=style)


def printable(text: str) -> str:
    """``text`` with control characters as backslash escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def plan_view(plan: Plan) -> RenderableType:
    """What is open or owed, how long the broker still waits, what will be done and why."""
    parts: list[RenderableType] = [plain(_headline(plan), style="bold")]
    if plan.steps:
        table = _table("action", "transaction", "age", "left", "rows", "why")
        for step in plan.steps:
            table.add_row(*_cells(step), plain(step.reason))
        parts.append(table)
        if plan.seal:
            parts.append(
                Text(
                    f"Before anything is aborted, batch {plan.seal.batch_id} attempt "
                    f"{plan.seal.attempt} is sealed, so that no driver can still promise it."
                )
            )
    else:
        parts.append(Text("Nothing to do: nothing is open, nothing that was promised is missing."))
    parts += [plain(f"ALIVE: {sign}", style="bold red") for sign in plan.alive]
    return Group(*parts)


def report_view(report: Report) -> RenderableType:
    """What was done."""
    head = f"Recovery of {report.location}, prefix {report.prefix!r}"
    if report.sealed:
        head += f": sealed batch {report.sealed.batch_id} attempt {report.sealed.attempt}"
    if not report.results:
        return Group(plain(head, style="bold"), Text("Nothing had to be done."))
    table = _table("action", "transaction", "age", "left", "rows", "result")
    for each in report.results:
        detail = f" ({each.detail})" if each.detail else ""
        table.add_row(*_cells(each.step), plain(each.result.value + detail))
    return Group(plain(head, style="bold"), table)


def audit_view(report: AuditReport) -> RenderableType:
    """The counts, and the first rows that break a promise."""
    undecided = report.visible_undecided
    counts = Table(box=None, show_header=False, pad_edge=False)
    counts.add_row(f"rows in {report.input_topic}", f"{report.rows_in:,}")
    for topic, rows in report.rows_out.items():
        counts.add_row(f"rows in {topic}", f"{rows:,}")
    for name, count in (
        ("lost", report.lost),
        ("duplicated", report.duplicated),
        ("reordered", report.reordered),
        ("unexpected", report.unexpected),
        ("visible before decided", undecided),
        ("in transactions still open", report.open_rows),
    ):
        style = "" if count is None else "green" if count == 0 else "bold red"
        counts.add_row(name, Text("not checked" if count is None else f"{count:,}", style=style))
    parts: list[RenderableType] = [counts]
    if report.offenders:
        table = _table("what", "topic/partition@offset", "key", "id", "detail")
        for row in report.offenders:
            place = f"{row.topic}/{row.partition}@{row.offset}"
            # as Text: what comes from a topic is no markup
            cells = (row.kind, place, row.key or "", row.id or "", row.detail)
            table.add_row(*map(plain, cells))
        parts.append(table)
    verdict = "Every row exactly once." if report.ok else "VIOLATED: see above."
    parts.append(Text(f"{verdict} ({report.seconds:.1f} s)", style="bold"))
    return Group(*parts)


def _headline(plan: Plan) -> str:
    batch = (
        f"batch {plan.in_flight} in flight" if plan.in_flight is not None else "no batch in flight"
    )
    return f"{plan.location}: prefix {plan.prefix!r}, {batch}"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in columns:
        right = name in {"age", "left", "rows"}
        table.add_column(
            name,
            justify="right" if right else "left",
            no_wrap=right or name in {"action", "what"},
            overflow="fold",
        )
    return table


def _cells(step: Step) -> tuple[RenderableType, ...]:
    if step.transaction is not None:
        identity = step.transaction
        subject = f"{identity.transactional_id} ({identity.producer_id}:{identity.producer_epoch})"
    else:
        subject = f"batch {step.batch_id}: {step.transactions} transactions"
    return (
        Text(step.action.name, style=_STYLE[step.action]),
        plain(subject),
        duration(step.age_ms),
        time_left(step.time_left_ms),
        "" if step.rows is None else f"{step.rows:,}",
    )


def time_left(milliseconds: int | None) -> str:
    """How long the broker still waits; ``due`` once its timeout has passed."""
    return "due" if milliseconds is not None and milliseconds <= 0 else duration(milliseconds)


def duration(milliseconds: int | None) -> str:
    """Two units at most: ``4.2 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 d 4 h``."""
    if milliseconds is None:
        return ""
    seconds = max(0, milliseconds) / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h"
