"""Named places where a test or the demo may kill the process; off unless asked for.

``EOS_FAILPOINTS`` holds ``name=action`` or ``name=action@N`` (act at the Nth pass), separated
by commas. Actions: ``kill`` (SIGKILL this process), ``stop`` (SIGSTOP it), ``raise``.
``EOS_FAILPOINTS_DIR`` names a folder in which each one leaves ``name.hit`` just before it acts;
one that has left it never acts again, in whatever process, so a restarted app runs on.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from pathlib import Path

_passes: Counter[str] = Counter()


def failpoint(name: str) -> None:
    """Act if ``EOS_FAILPOINTS`` names this place; a dictionary look-up otherwise."""
    wanted = os.environ.get("EOS_FAILPOINTS")
    if wanted:
        _consider(name, wanted)


def _consider(name: str, wanted: str) -> None:
    for entry in wanted.split(","):
        named, _, what = entry.strip().partition("=")
        if named != name:
            continue
        _passes[name] += 1
        action, _, nth = what.partition("@")
        if _passes[name] >= int(nth or 1) and _first_time(name):
            _act(name, action)


def _first_time(name: str) -> bool:
    folder = os.environ.get("EOS_FAILPOINTS_DIR")
    if folder is None:
        return True
    try:
        (Path(folder) / f"{name}.hit").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _act(name: str, action: str) -> None:
    # To the descriptor: what is buffered dies with the process.
    os.write(2, f"airflow_eos: EOS_FAILPOINTS: {action} here, at {name!r}.\n".encode())
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "stop":
        # To this thread: sent to the process, another may take it, and this one go on for a while.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    elif action == "raise":
        raise RuntimeError(f"failpoint {name}")
    else:
        raise ValueError(f"EOS_FAILPOINTS: {name}={action}: expected kill, stop or raise")
