"""An audit as tables that a person can decide from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from airflow_eos.tables import plain, table

if TYPE_CHECKING:
    from airflow_eos.audit.audit import AuditReport


def audit_view(report: AuditReport) -> RenderableType:
    """The counts, and the first rows that break a promise."""
    undecided = report.visible_undecided
    counts = Table(box=None, show_header=False, pad_edge=False)
    counts.add_row(f"rows in {', '.join(report.input_topics)}", f"{report.rows_in:,}")
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
    for topic, offsets in (report.whole_until or {}).items():
        counts.add_row(f"all of {topic} is out before", json.dumps(offsets))
    if report.again:
        counts.add_row("and of what is behind it", f"{report.again:,}")
    if report.given_up:
        counts.add_row("given up by a person (accept --skip-input)", f"{report.given_up:,}")
    parts: list[RenderableType] = [counts]
    if report.offenders:
        offenders = table("what", "topic/partition@offset", "key", "id", "detail")
        for row in report.offenders:
            place = f"{row.topic}/{row.partition}@{row.offset}"
            # as Text: what comes from a topic is no markup
            cells = (row.kind, place, row.key or "", row.id or "", row.detail)
            offenders.add_row(*map(plain, cells))
        parts.append(offenders)
    if report.unjudged:
        unknown = table("not known", "rows", "what would tell")
        for each in report.unjudged:
            about = "" if each.rows is None else f"{each.rows:,}"
            unknown.add_row(plain(each.why), about, plain(each.answer))
        parts.append(unknown)
    verdict = {
        "exact": "Every row exactly once"
        + (", but for those that a person has given up." if report.given_up else "."),
        "violated": "VIOLATED: see above.",
        "unknown": "NOT KNOWN: nothing is violated that can be judged, and not all can be.",
    }[report.verdict]
    parts.append(Text(f"{verdict} ({report.seconds:.1f} s)", style="bold"))
    return Group(*parts)
