"""Helpers of all tables for people, 100 columns wide. Needs the ``cli`` extra."""

from __future__ import annotations

import io
import os

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from airflow_eos.errors import printable

WIDTH = 100


def show(view: RenderableType) -> None:
    """Print to the terminal; a pipe or a log file gets 100 columns, or as many as COLUMNS says.

    There a sentence is one line all the same, since it may have a command to paste or to look for.
    """
    console = Console()
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        console = Console(width=WIDTH)
    console.print(view, soft_wrap=not console.is_terminal)


def as_text(view: RenderableType, width: int = WIDTH) -> str:
    """Return plain text for logs, at most ``width`` columns wide."""
    console = Console(file=io.StringIO(), width=width, no_color=True, legacy_windows=False)
    with console.capture() as capture:
        console.print(view)
    return capture.get()


def plain(text: str, style: str = "") -> Text:
    """Make a text from a checkpoint, broker or topic harmless: no markup, no terminal commands."""
    return Text(printable(text), style=style)


def table(*columns: str) -> Table:
    """Make an empty table without a box; ages, times and counts stand on the right."""
    empty = Table(box=None, pad_edge=False, header_style="dim")
    for name in columns:
        right = name in {"age", "left", "rows"}
        empty.add_column(
            name,
            justify="right" if right else "left",
            no_wrap=right or name in {"action", "what"},
            overflow="fold",
        )
    return empty


def time_left(milliseconds: int | None) -> str:
    """Return how long the broker still waits; ``due`` once its timeout has passed."""
    return "due" if milliseconds is not None and milliseconds <= 0 else duration(milliseconds)


def duration(milliseconds: int | None) -> str:
    """Return a duration in two units at most: ``4.2 s``, ``3 min 20 s``, ``2 h 5 min``."""
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
