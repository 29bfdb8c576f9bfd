"""What every test shares: a private Airflow home, a mark from its folder, the broker's fixtures."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

_ROOT = Path(__file__).parent
_KINDS = ("unit", "integration", "chaos")

# Before anything imports Airflow, which writes its configuration where it is first imported.
os.environ.setdefault("AIRFLOW_HOME", str(_ROOT.parent / ".build" / "airflow"))
os.environ.setdefault("AIRFLOW__CORE__LOAD_EXAMPLES", "False")

pytest_plugins = ["airflow_eos.local.pytest_plugin"]


def pytest_configure() -> None:
    """Let Ctrl-C, and a terminal that closes, reach what the tests start.

    A shell without job control starts what is in the background deaf to the one, ``nohup`` to the
    other, and children inherit that. We stay as deaf as ``nohup`` asks: a handler is not inherited.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by the folder that it is in, so that none is forgotten; the model goes first.

    Its file is the longest of all: begun last, it would leave the other worker idle.
    """
    items.sort(key=lambda item: "model" not in item.path.relative_to(_ROOT).parts)
    for item in items:
        kind = item.path.relative_to(_ROOT).parts[0]
        if kind in _KINDS:
            item.add_marker(kind)
