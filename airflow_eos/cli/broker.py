"""``airflow-eos broker``: a Kafka broker on this machine, in the background.

A first pipeline needs topics, rows in one and a look at another: Kafka's own tools are a download.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from airflow_eos.cli.options import AsJson, PlainCommand, PlainGroup, tell
from airflow_eos.errors import LocalEnvironmentError

if TYPE_CHECKING:
    from airflow_eos.local.daemon import RunningBroker

app = typer.Typer(
    help="A Kafka broker on this machine, to try things out.",
    no_args_is_help=True,
    cls=PlainGroup,
)


@app.command(cls=PlainCommand, epilog="Example: airflow-eos broker start")
def start(as_json: AsJson = False) -> None:
    """Start a broker in the background, at port 9092 if that is free, with the data it had."""
    from airflow_eos.local import daemon, jars

    jars.broker_jars()  # in this process, which shows the progress of a first download
    _show(daemon.start(), as_json=as_json)


@app.command(cls=PlainCommand, epilog="Example: airflow-eos broker stop")
def stop(
    remove: Annotated[bool, typer.Option("--remove", help="Topics and rows, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Stop the broker in the background; the next start has its topics and rows again."""
    from airflow_eos.local import daemon

    stopped = daemon.stop()
    if remove:
        shutil.rmtree(daemon.data_folder(), ignore_errors=True)
    text = "Broker stopped." if stopped else "No broker was running."
    tell({"stopped": stopped}, text, as_json=as_json)


@app.command(cls=PlainCommand, epilog="Example: airflow-eos broker status")
def status(as_json: AsJson = False) -> None:
    """Say whether a broker runs in the background; exit status 1 where none does."""
    from airflow_eos.local import daemon

    found = daemon.status()
    _show(found, as_json=as_json)
    if found is None:
        raise typer.Exit(1)


@app.command(cls=PlainCommand, epilog="Example: airflow-eos broker topic orders --partitions 4")
def topic(
    names: Annotated[list[str], typer.Argument(help="Topics to make.")],
    partitions: Annotated[int, typer.Option(help="Partitions of each topic.", min=1)] = 2,
) -> None:
    """Make topics on the broker in the background; one that is there stays as it is."""
    from airflow_eos.local.broker import create_topic, topics

    address = _address()
    there = topics(address)
    for name in names:
        if name not in there:
            create_topic(address, name, partitions, {})
        typer.echo(f"{name}: {there.get(name, partitions)} partitions")


@app.command(cls=PlainCommand, epilog="Example: airflow-eos broker write orders < orders.tsv")
def write(topic: Annotated[str, typer.Argument(help="An existing topic.")]) -> None:
    """Write each line of the standard input as a row: its value, or key, tab and value."""
    from airflow_eos.local.rows import write_rows

    lines = (line.rstrip("\n") for line in sys.stdin)
    split = (line.partition("\t") for line in lines)
    rows = ((key, value) if tab else (None, key) for key, tab, value in split)
    typer.echo(f"{topic}: {write_rows(_address(), topic, rows)} rows written")


@app.command(cls=PlainCommand, epilog="Example: airflow-eos broker read orders.out --last")
def read(
    topic: Annotated[str, typer.Argument(help="An existing topic.")],
    last: Annotated[bool, typer.Option("--last", help="Only the last row of each key.")] = False,
) -> None:
    """Print the rows that readers see now (read_committed): key, tab and value."""
    from airflow_eos.local.rows import read_rows

    rows = read_rows(_address(), topic)
    for key, value in dict(rows).items() if last else rows:
        typer.echo(f"{key or ''}\t{value}")


def _address() -> str:
    from airflow_eos.local import daemon

    broker = daemon.status()
    if broker is None:
        raise LocalEnvironmentError(
            "No broker runs in the background: `airflow-eos broker start` starts one."
        )
    return broker.bootstrap_servers


def _show(broker: RunningBroker | None, *, as_json: bool) -> None:
    import pendulum

    if broker is None:
        tell({"running": False}, "No broker is running.", as_json=as_json)
        return
    age = pendulum.from_timestamp(broker.started_at).diff_for_humans(absolute=True)
    tell(
        {"running": True} | msgspec.to_builtins(broker),
        f"Broker at {broker.bootstrap_servers}, up for {age}.\nLogs: {broker.log_folder}",
        as_json=as_json,
    )


TO_THE_DEMO = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Context settings that pass every argument on to the demo, ``--help`` too."""


def demo(context: typer.Context) -> None:
    """Kill a streaming app four times, let Airflow recover it, count every row (in a clone)."""
    clone = Path(__file__).resolve().parents[2]
    if not (clone / "demo" / "__main__.py").is_file():
        raise LocalEnvironmentError(
            "The demo is a part of the project's sources, not of the installed package: clone the "
            "project and run `make demo` there."
        )
    path = os.pathsep.join([str(clone), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    os.execve(sys.executable, [sys.executable, "-m", "demo", *context.args], environment)  # noqa: S606
