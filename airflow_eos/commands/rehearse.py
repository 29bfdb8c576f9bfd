"""``airflow-eos rehearse``: what would a new version of an app deliver?"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Annotated

import typer

from airflow_eos.commands.options import AsJson, Checkpoint, StorageOption, storage_options
from airflow_eos.errors import ConfigurationError


def rehearse(
    checkpoint: Checkpoint,
    app: Annotated[Path, typer.Option(help="The new version, a Python file.")],
    batches: Annotated[int, typer.Option(min=1, help="How many of the newest batches.")] = 20,
    submit: Annotated[
        str, typer.Option(help="Command that starts the app, with its options.")
    ] = "spark-submit",
    key: Annotated[
        list[str] | None,
        typer.Option(help="A column that pairs rows of the two versions; repeatable."),
    ] = None,
    examples: Annotated[
        int, typer.Option(min=0, help="Example rows for each batch and output.")
    ] = 3,
    scratch: Annotated[
        str | None,
        typer.Option(
            help="Where executors of other machines reach the copy of the checkpoint; it stays "
            "there. Without it: a temporary folder of this machine."
        ),
    ] = None,
    keep: Annotated[
        str,
        typer.Option(help="An empty topic: the rows of outputs to Kafka go there, too."),
    ] = "",
    storage_option: StorageOption = None,
    as_json: AsJson = False,  # noqa: FBT002 - a flag of the command line
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the app, after --.")
    ] = None,
) -> None:
    """Compare the rows of a new version with delivered batches; nothing is delivered.

    The pipeline may run meanwhile: its checkpoint is only read. Exit status: 0 nothing differs, 1
    something does, 2 an error, also of the new version, 3 not known.
    """
    from airflow_eos.checkpoint.rehearsal import RehearsalRequest
    from airflow_eos.supervision.rehearsal import rehearse as run
    from airflow_eos.supervision.rehearsal import report_view
    from airflow_eos.tables import show

    if not app.is_file():
        raise ConfigurationError(f"--app {app} is not a file that can be read.")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory(prefix="airflow-eos-rehearse-") as folder:
        place = f"{scratch.rstrip('/')}/{uuid.uuid4().hex}" if scratch else f"{folder}/checkpoint"
        told = RehearsalRequest(checkpoint, place, batches, tuple(key or ()), examples, keep)
        command = [*_starter(submit), str(app), *(arguments or [])]
        report = run(command, told, Path(folder), storage_options(storage_option))
    if as_json:
        typer.echo(report.to_json())
    else:
        show(report_view(report))
    if report.exit_status:
        raise typer.Exit(report.exit_status)


def _starter(submit: str) -> list[str]:
    """The command, where it is; that of this Python's pyspark where none is on the path."""
    name, *options = shlex.split(submit)
    found = shutil.which(name) or shutil.which(name, path=Path(sys.executable).parent)
    if found is None:
        raise ConfigurationError(f"--submit {submit!r}: there is no program {name!r} here.")
    return [found, *options]
