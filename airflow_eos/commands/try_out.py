"""``airflow-eos try``: kill an app in the middle of a batch, and count every row."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from airflow_eos.commands.options import AsJson

DIFFERS = 1


def try_out(
    project: Annotated[
        Path | None,
        typer.Argument(help="A folder made by `airflow-eos new`; one of our own if left out."),
    ] = None,
    as_json: AsJson = False,  # noqa: FBT002 - a flag of the command line
) -> None:
    """Kill a streaming app in the middle of a batch, recover it, let it go on, count every row.

    Starts a Kafka broker of its own and needs Java 17 and pyspark; leaves nothing behind. Exit
    status: 0 every row once, 1 rows lost or twice, 2 an error.
    """
    from rich.console import Console

    from airflow_eos.commands.new import Kind, make_project
    from airflow_eos.local import EmbeddedKafka, broker_jars, spark_jars
    from airflow_eos.supervision.trial import play, read_project

    console = Console(quiet=as_json)
    with tempfile.TemporaryDirectory(prefix="airflow-eos-try-") as folder:
        if project is None:
            project = Path(folder) / "clicks"
            make_project("clicks", Kind.map, project)
        found = read_project(project)
        broker_jars()  # here, where the progress of a first download can be seen
        spark_jars()
        with EmbeddedKafka() as kafka:
            console.print(f"A Kafka broker is up at {kafka.bootstrap_servers}.")
            counted = play(found, Path(folder), kafka.bootstrap_servers, console)
    if as_json:
        typer.echo(msgspec.json.encode(counted).decode())
    if counted.lost or counted.duplicated:
        raise typer.Exit(DIFFERS)
