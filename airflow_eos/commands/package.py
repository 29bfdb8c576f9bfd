"""``airflow-eos package``: this package as one zip for Spark's ``--py-files``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from airflow_eos.supervision.archive import build_archive


def package(
    output: Annotated[Path, typer.Option(help="The zip to write.")] = Path("airflow_eos.zip"),
) -> None:
    """Build the zip for spark-submit --py-files; the Airflow operator does it by itself."""
    typer.echo(str(build_archive(output)))
