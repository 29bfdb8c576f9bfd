"""``airflow-eos`` and ``python -m airflow_eos``: say what the command line lacks, or run it.

Executors import this package and never show anything to a person, so the libraries that do are an
extra of their own.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

_EXTRA = ("packaging", "pendulum", "platformdirs", "rich", "typer")


def main() -> None:
    """Run the command line, or say in one sentence what to install."""
    missing = [name for name in _EXTRA if find_spec(name) is None]
    if missing:
        sys.exit(
            f"airflow-eos: {', '.join(missing)} not installed. The command line is an extra: "
            "pip install 'airflow-provider-eos[cli]'"
        )
    from airflow_eos.cli import main as run

    run()


if __name__ == "__main__":
    main()
