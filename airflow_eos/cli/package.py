"""``airflow-eos package``: pack what Spark's executors need into one file."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from airflow_eos.cli.options import AsJson, tell

if TYPE_CHECKING:
    from airflow_eos.ops.packaging import Environment

_MB = 1_000_000


def package(
    output: Annotated[Path, typer.Option(help="The zip to write, of this package alone.")] = Path(
        "airflow_eos.zip"
    ),
    environment: Annotated[
        Path | None,
        typer.Option(
            help="Write this .tar.gz instead: Python, this package and all that it needs, for "
            "spark.archives."
        ),
    ] = None,
    with_: Annotated[
        list[str] | None,
        typer.Option("--with", help="An extra to put into the environment, as postgres; again."),
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(help="An installed distribution to put into it, as pandas; again."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Build the zip for spark-submit --py-files, or an environment for executors without ours.

    The Airflow operator makes the zip by itself. Nothing is fetched: the environment is a copy of
    the Python that runs this, and of what is installed in it.
    """
    if environment is not None:
        made = _environment(environment, with_ or [], also or [])
        tell(dataclasses.asdict(made) | {"path": str(made.path)}, _said(made), as_json=as_json)
    elif with_ or also:
        raise typer.BadParameter("--with and --also say what goes into --environment FILE.")
    else:
        from airflow_eos.ops.packaging import build_archive

        path = str(build_archive(output))
        tell({"path": path}, path, as_json=as_json)


def _environment(path: Path, extras: list[str], also: list[str]) -> Environment:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from airflow_eos.ops.packaging import build_environment

    columns = (TextColumn("Packing"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("")
        return build_environment(
            path,
            extras=extras,
            also=also,
            progress=lambda done, total: shown.update(task, completed=done, total=total),
        )


def _said(made: Environment) -> str:
    return (
        f"{made.path}: {made.packed / _MB:.0f} MB, {made.unpacked / _MB:.0f} MB unpacked, with "
        f"{', '.join(f'{name} {version}' for name, version in made.distributions)}\n"
        f"Give Spark: spark.archives={made.path}#environment and "
        "spark.pyspark.python=./environment/bin/python; where the driver runs here (client mode), "
        f"also spark.pyspark.driver.python={sys.executable}."
    )
