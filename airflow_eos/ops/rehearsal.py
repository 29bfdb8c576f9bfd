"""Run a new version of an app as a rehearsal, and read and show its report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Group, RenderableType

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.rehearsal import REPORT, RehearsalReport, RehearsalRequest
from airflow_eos.errors import AppFailedError, Remedy
from airflow_eos.local.process import run_guarded, tail
from airflow_eos.ops.tables import plain, table
from airflow_eos.secret_names import is_secret

_MASKED = "***"


def rehearse(
    command: Sequence[str],
    request: RehearsalRequest,
    folder: Path,
    storage_options: Mapping[str, str] | None = None,
) -> RehearsalReport:
    """Run the app to the end of its rehearsal, and return the report.

    Args:
        command: the command that starts the app, with its arguments.
        folder: folder of the app's log; removed where this process is killed.

    Raises:
        AppFailedError: the app ended before anything was compared.
    """
    log = folder / "log"
    env = {**os.environ, **request.environment()}
    status = run_guarded(command, folder=folder, log=log, env=env)
    return report_of(
        request,
        f"It ended with status {status}. It said last:\n{masked(tail(log), command, os.environ)}\n",
        storage_options,
    )


def report_of(
    request: RehearsalRequest, otherwise: str, storage_options: Mapping[str, str] | None = None
) -> RehearsalReport:
    """Read the app's report (AppFailedError, with ``otherwise``: it has written none)."""
    store = CheckpointStore.open(request.scratch, storage_options=storage_options)
    report = store.read(REPORT, RehearsalReport)
    if report is None:
        raise AppFailedError(
            f"The app did not rehearse on {request.checkpoint}: expected one that starts its query "
            f"with start_exactly_once, or app.start. Nothing was delivered. {otherwise}",
            Remedy(change="correct what it says, and rehearse again"),
        )
    return report


def masked(text: str, command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Mask in ``text`` the values of secrets that the app was given by name."""
    values = {value for name, value in environment.items() if is_secret(name)}
    for number, word in enumerate(command):
        named = [at for at, sign in enumerate(word) if sign == "=" and is_secret(word[:at])]
        if named:
            values.add(word[named[0] + 1 :])
        elif word.startswith("-") and is_secret(word):
            values.update(command[number + 1 : number + 2])
    for value in sorted(filter(None, values), key=len, reverse=True):
        text = text.replace(value, _MASKED)
    return text


def report_view(report: RehearsalReport) -> RenderableType:
    """Return tables of the compared batches and outputs, and of examples of differing rows."""
    compared = table("batch", "output", "verdict", "rows", "changed", "missing", "new", "why")
    examples = table("batch", "what", "key", "readers have", "new version")
    for each in report.compared:
        found = each.difference
        counts = ["", "", ""] if found is None else [found.changed, found.missing, found.new]
        cells = (each.batch, each.output, each.verdict, _rows(each.delivered, each.rehearsed))
        compared.add_row(*(plain(str(cell)) for cell in (*cells, *counts, each.why)))
        for example in found.examples if found is not None else ():
            shown = (example.what, example.key, example.delivered, example.rehearsed)
            examples.add_row(*map(plain, (str(each.batch), *shown)))
    parts: list[RenderableType] = [compared] if report.compared else []
    if examples.row_count:
        parts.append(examples)
    if report.error:
        parts.append(plain(f"The new version failed. {report.error}", style="bold red"))
    parts.append(plain(sentence(report), style="bold"))
    return Group(*parts)


def sentence(report: RehearsalReport) -> str:
    """Return the verdict as a sentence for people."""
    batches = {each.batch for each in report.compared}
    said = {
        "same": "The new version gives the same rows",
        "differs": "The new version gives OTHER ROWS",
        "failed": "The new version FAILED",
        "not known": "NOT KNOWN: nothing differs that could be compared, and not all could be",
    }[report.verdict]
    if report.verdict == "differs" and not report.has_other_rows:
        said = "The new version READS OTHER INPUT"
    if report.verdict == "not known" and report.compared and report.is_empty:
        said = "NOT KNOWN: none of these batches has a row. Rehearse more of them"
    return f"{said} ({len(batches)} batches of {report.checkpoint}, {report.seconds:.1f} s)."


def _rows(delivered: int | None, rehearsed: int | None) -> str:
    if delivered is None or rehearsed is None:
        return ""
    return f"{delivered:,}" if delivered == rehearsed else f"{delivered:,} → {rehearsed:,}"
