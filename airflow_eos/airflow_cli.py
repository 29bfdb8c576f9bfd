"""``airflow eos …``: the command line ``airflow-eos``, where Airflow's users look for it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.cli.cli_config import CLICommand


def get_commands() -> list[CLICommand]:
    """What the provider adds to ``airflow``; it is asked whenever that starts, so it costs nothing.

    One command that hands everything on, since two descriptions of the same arguments would differ
    one day.
    """
    from airflow.cli.cli_config import ActionCommand, Arg

    told = "as for airflow-eos; try: airflow eos -- --help"
    rest = Arg(("arguments",), nargs="...", help=told)  # type: ignore[no-untyped-call]
    return [
        ActionCommand(
            name="eos",
            help="Exactly-once Spark streaming: plan, recover, audit, status, drain",
            func=run,
            args=(rest,),
        )
    ]


def run(args: Any) -> None:
    """Run ``airflow-eos`` with what was said after ``airflow eos``."""
    from airflow_eos.__main__ import main

    given = [each for each in args.arguments if each != "--"]
    sys.argv = ["airflow-eos", *given]
    main()
