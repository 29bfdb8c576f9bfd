"""The demo's output on the console: chapters, live progress, plans and the audit."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs
from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from airflow_eos.cli.audit import audit_view
from airflow_eos.ops.plan_tables import plan_view

if TYPE_CHECKING:
    from rich.console import RenderableType

    from airflow_eos.recovery import AuditReport, Plan
    from demo.scenario import Act

_WIDTH = 110
_REMOTE_FONTS = re.compile(r"@font-face \{.*?\}", re.DOTALL)


class Live:
    """One line of live progress: a text, and a bar where there is something to count."""

    def __init__(self, progress: Progress, total: int | None) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=total)
        self.shown: tuple[str, int | None] = ("", None)

    def say(self, text: str, done: int | None = None) -> None:
        """Show this text, and on the bar how much is done."""
        self.shown = (text, done)
        self._progress.update(self._task, description=text, completed=done)


class Story:
    """Prints the demo to a console, and records the last chapters for a picture."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or _recording_console()
        self._started = time.monotonic()

    def chapter(self, title: str) -> None:
        """Print the heading of a new chapter."""
        self._console.print()
        self._console.rule(Text(title, style="bold"), align="left", style="dim")

    def act(self, number: int, act: Act) -> None:
        """Begin the chapter of a kill; the picture shows the last kill and the end."""
        self._console.export_text(clear=True)
        self.chapter(f"{number} · killed: {act.title}")

    def say(self, text: str) -> None:
        """Print what has happened, with the time."""
        line = Table.grid(padding=(0, 2))
        line.add_row(Text(self._clock(), style="dim"), Text(text))
        self._console.print(line)

    def show_plan(self, plan: Plan) -> None:
        """Print a recovery plan; of the checkpoint, in a temporary folder, only its name."""
        self._indented(plan_view(structs.replace(plan, location=Path(plan.location).name)))

    def end(self, report: AuditReport, *, deaths: int) -> None:
        """Print the audit, and its counts of lost, duplicated and reordered rows."""
        self._indented(audit_view(report))
        counts = f"lost {report.lost}, duplicated {report.duplicated}, reordered {report.reordered}"
        colour = "green" if report.ok else "red"
        self._console.print(
            Panel.fit(
                Text(counts, style=f"bold {colour}"),
                title=f"after {deaths} deaths, in {self._clock().strip()} minutes",
                border_style=colour,
            )
        )

    def save_picture(self, path: Path) -> None:
        """Write the last chapters as an SVG that loads no remote fonts."""
        picture = self._console.export_svg(title="airflow-eos demo", clear=False)
        path.write_text(_REMOTE_FONTS.sub("", picture), encoding="utf-8")

    @contextmanager
    def live(self, total: int | None = None) -> Iterator[Live]:
        """Show a line of live progress, and remove it at the end."""
        bar = [] if total is None else [BarColumn(bar_width=30), MofNCompleteColumn()]
        text = TextColumn("{task.description}")
        columns = (SpinnerColumn(), TimeElapsedColumn(), text, *bar)
        with Progress(*columns, console=self._console, transient=True) as progress:
            yield Live(progress, total)

    def _indented(self, view: RenderableType) -> None:
        self._console.print(Padding(view, (0, 0, 0, 6)))

    def _clock(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._started), 60)
        return f"{minutes:2}:{seconds:02}"


def _recording_console() -> Console:
    terminal = Console()
    width = min(_WIDTH, terminal.width) if terminal.is_terminal else _WIDTH
    return Console(record=True, width=width, highlight=False)
