"""``airflow-eos status --watch``: one look after the other, like top, until Ctrl-C."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import typer
from rich.console import Console, Group
from rich.live import Live

from airflow_eos.commands.status_table import status_table
from airflow_eos.errors import EosError
from airflow_eos.tables import WIDTH, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import RenderableType

Look = dict[str, Any]


def watch_status(look: Callable[[], Look], *, every_s: float, as_json: bool) -> None:
    """Show each look, or print it as one line of JSON, until Ctrl-C.

    A look that fails is shown with what was found before, and as ``{"error": …}``: a store that
    is away for a moment is what one watches for.

    Raises:
        EosError: the first look failed: most likely it never will do better.
    """
    console = Console()
    looks = _looks(look, every_s)
    try:
        if as_json:
            for found in looks:
                typer.echo(msgspec.json.encode(found))
        elif console.is_terminal:
            _on_screen(console, looks)
        else:
            paper = Console(width=WIDTH)
            for view in map(_View().of, looks):
                paper.print(view)
    except KeyboardInterrupt:
        return


def _on_screen(console: Console, looks: Iterator[Look]) -> None:
    """On the terminal's other screen, as top does; what was seen last stays on the first."""
    view: RenderableType = ""
    made = _View()
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            for found in looks:
                view = made.of(found)
                live.update(view, refresh=True)
    finally:
        console.print(view)


class _View:
    """What is shown of a look; of one that failed, the one before and why."""

    def __init__(self) -> None:
        self._found: Look | None = None

    def of(self, found: Look) -> RenderableType:
        if "error" not in found:
            self._found = found
            return status_table(found)
        why = plain(f"no answer: {found['error']}", "red")
        return why if self._found is None else Group(status_table(self._found), "", why)


def _looks(look: Callable[[], Look], every_s: float) -> Iterator[Look]:
    found = look()
    while True:
        yield found | {"looked_at_ms": time.time_ns() // 1_000_000}
        time.sleep(every_s)
        try:
            found = look()
        except EosError as error:
            found = {"error": str(error)}
