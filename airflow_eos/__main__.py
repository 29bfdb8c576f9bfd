"""The entry point ``airflow-eos``: run the command line, or say which library is missing.

Executors import this package and never show anything to a person, so the libraries of the command
line are an extra of their own.
"""

from __future__ import annotations

import signal
import sys
from importlib.util import find_spec
from types import FrameType

_EXTRA = ("packaging", "pendulum", "platformdirs", "rich", "typer")


def main() -> None:
    """Run the command line, or say in one sentence what to install."""
    missing = [name for name in _EXTRA if find_spec(name) is None]
    if missing:
        print(  # noqa: T201
            f"airflow-eos: {', '.join(missing)} not installed. The command line is an extra: "
            "pip install 'airflow-provider-eos[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)  # as every error: 1 is an answer of some commands
    try:
        from airflow_eos.cli.app import main as run
    except KeyboardInterrupt:  # a second in which a command line can be thought better of
        sys.exit(128 + signal.SIGINT)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup has it ignored
            signal.signal(number, _end)
    run()


def _end(number: int, _frame: FrameType | None) -> None:
    """Exit as Ctrl-C does, so that processes and temporary folders of the command are removed."""
    signal.signal(number, signal.SIG_IGN)  # a second signal must not cut the clean-up short
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
