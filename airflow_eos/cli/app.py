"""The command line ``airflow-eos``: gathers the commands and turns errors into one line.

A module in ``airflow_eos.cli`` holds a group of commands as a ``typer.Typer`` named ``app``,
or single commands as functions. It must be cheap to import: a command imports what it needs in its
function, so that ``airflow-eos --help`` is quick, and works where Spark or Airflow is missing.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer

from airflow_eos import __version__
from airflow_eos.cli import (
    audit,
    broker,
    cut,
    doctor,
    explain,
    foreign,
    new,
    package,
    recovery,
    status,
    transactions,
    upgrade,
)
from airflow_eos.cli.options import PlainCommand, PlainGroup, tell_json
from airflow_eos.cli.project import FILE, ProjectCommand
from airflow_eos.errors import EosError, LocalEnvironmentError, Remedy, printable_lines, sayable

_UsageError: Any = typer.BadParameter.__base__  # typer has a click of its own in newer releases
ERROR = 2
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR}
UNREAD = 128 + signal.SIGPIPE

app = typer.Typer(
    name="airflow-eos",
    cls=PlainGroup,
    help="Exactly-once Spark streaming to Kafka: plan, recover, audit, try out.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # they could hold passwords
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"airflow-provider-eos {__version__}")
        raise typer.Exit


@app.callback()
def _of_every_command(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(help=f"Settings of the pipeline; {FILE} in this folder if left out."),
    ] = None,
) -> None:
    """Take the options that stand before a command, and refuse a folder that is not there.

    Raises:
        LocalEnvironmentError: the folder that the command stands in was removed.
    """
    del version, config  # Typer acts on the one, ProjectCommand reads the other
    try:
        Path.cwd()
    except FileNotFoundError as error:
        was = os.environ.get("PWD", "it")
        raise LocalEnvironmentError(
            f"The folder that this command was started in is not there any more: {was} was removed "
            "or replaced.",
            Remedy(change="go to a folder that is there (`cd`), and run the command again"),
        ) from error


TRY, LOOK, ACT, CHANGE, RARE = (
    "Try it out",
    "Look; changes nothing",
    "Act on a pipeline",
    "A new version",
    "When something else is in the way",
)
_AT = "checkpoints/orders -b kafka-1:9092"
_COMMANDS = (  # panel, name, function, example
    (TRY, "try", new.try_out, ""),
    (TRY, "new", new.new, "orders --kind windows"),
    (TRY, "demo", broker.demo, ""),
    (LOOK, "doctor", doctor.doctor, f"{_AT} --topic orders.out --prefix orders"),
    (LOOK, "status", status.status, f"{_AT} --watch"),
    (LOOK, "plan", recovery.plan, _AT),
    (LOOK, "cut", cut.cut, "checkpoints/orders"),
    (LOOK, "audit", audit.audit, "orders orders.out -b kafka-1:9092 --id value.id"),
    (LOOK, "blocked", transactions.blocked, "orders.out -b kafka-1:9092"),
    (LOOK, "ui", status.ui, "checkpoints/orders"),
    (LOOK, "explain", explain.explain, "OwnershipError"),
    (ACT, "recover", recovery.recover, _AT),
    (ACT, "drain", recovery.drain, "checkpoints/orders --wait '1 minute'"),
    (ACT, "handover", recovery.handover, "checkpoints/orders"),
    (ACT, "accept", recovery.accept, f"{_AT} --batch 17"),
    (CHANGE, "rehearse", upgrade.rehearse, "checkpoints/orders --app orders_v2.py"),
    (CHANGE, "repartition", upgrade.repartition, "checkpoints/orders --partitions 8"),
    (CHANGE, "package", package.package, "--environment environment.tar.gz --also pandas"),
    (RARE, "disown", recovery.disown, "orders -b kafka-1:9092"),
    (RARE, "hanging", transactions.hanging, "orders.out -b kafka-1:9092"),
)
for _panel, _name, _function, _example in _COMMANDS:
    app.command(
        _name,
        rich_help_panel=_panel,
        epilog=f"Example: airflow-eos {_name} {_example}".strip(),
        context_settings=broker.TO_THE_DEMO if _name == "demo" else None,
        cls=ProjectCommand if _panel in {LOOK, ACT, CHANGE} else PlainCommand,
    )(_function)
app.add_typer(broker.app, name="broker", rich_help_panel=TRY)
app.add_typer(foreign.app, name="foreign", rich_help_panel=RARE)


def main() -> None:
    """Run the command line.

    An ``EosError`` is one message on standard error and exit status 2, without a traceback: it says
    what was found and what to do, and a traceback would only bury that. Any other exception is
    shown with its traceback, and has the same status: Python's own, 1, is an answer of some
    commands (rows are lost). Output that nobody reads (``| head``) has a status of its own, too.
    """
    if isinstance(sys.stdout, TextIOWrapper):  # a terminal of few letters must not end a command
        encoding = "utf-8" if "--json" in sys.argv else None
        sys.stdout.reconfigure(encoding=encoding, errors="backslashreplace")
    try:
        _run()
    except EosError as error:
        # It may quote what a checkpoint or a topic holds.
        print(f"airflow-eos: {printable_lines(str(error))}", file=sys.stderr)  # noqa: T201
        _tell_program(error, str(error), error.remedies)
        sys.exit(ERROR)
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):
            sys.exit(UNREAD)
        # Typer has told people, but no program, what is wrong with the command line itself.
        if isinstance(ended.__context__, _UsageError):
            _tell_program(ended.__context__, ended.__context__.format_message())
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, it is no answer
        sys.excepthook(*sys.exc_info())
        _tell_program(error, str(error))
        sys.exit(ERROR)


def _run() -> None:
    """Run the command; a place of this machine that refuses it is no fault of ours to be traced.

    Raises:
        LocalEnvironmentError: a file or folder of this machine cannot be used.
    """
    try:
        app()
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        where = error.filename or "What this command prints, or a file, cannot be written"
        raise LocalEnvironmentError(
            f"{where}: {error.strerror}.",
            Remedy(
                change="make room there, give yourself the right, or name folders of yours: "
                "XDG_CACHE_HOME for downloads, XDG_STATE_HOME for the broker, TMPDIR"
            ),
        ) from error


def _tell_program(error: BaseException, message: str, remedies: Sequence[Remedy] = ()) -> None:
    """With ``--json``, print the error's class, message and remedies as data."""
    if "--json" in sys.argv:
        told = {"error": type(error).__name__, "message": sayable(message), "remedies": remedies}
        with suppress(OSError):  # where that is what is wrong
            tell_json(told)
