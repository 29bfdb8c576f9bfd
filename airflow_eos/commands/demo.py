"""``airflow-eos demo``: hands over to the demo of the clone that it runs in."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import typer

from airflow_eos.errors import LocalEnvironmentError

TO_THE_DEMO = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""All arguments are the demo's own, ``--help`` too."""


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
