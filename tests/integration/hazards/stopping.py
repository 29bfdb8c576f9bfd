"""A driver that stands still (SIGSTOP) at a failpoint while the world goes on, and wakes up."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.pipeline import Pipeline, finish, kill, wait_until

PATIENCE_S = 500  # on a busy machine an app takes minutes


@contextmanager
def stopped_at(pipeline: Pipeline, place: str, **changes: Any) -> Iterator[subprocess.Popen[str]]:
    """A driver that SIGSTOPs itself there and is left lying; ``name`` or ``name@N``."""
    name, _, nth = place.partition("@")
    process = pipeline.start(failpoints=f"{name}=stop@{nth or 1}", **changes)

    def stands() -> bool:
        """Not that it has come there: a SIGCONT before the SIGSTOP wakes nobody."""
        if process.poll() is not None:
            return True
        how = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, process.pid, how) is not None

    try:
        wait_until(stands, timeout=PATIENCE_S, what=place)
        assert process.poll() is None, finish(process, 5)[-3000:]
        yield process
    finally:
        kill(process)


def wake(process: subprocess.Popen[str]) -> str:
    """Let it go on, to its end; an error, or it would have gone on delivering."""
    os.kill(process.pid, signal.SIGCONT)
    output = finish(process, PATIENCE_S)
    assert process.returncode not in (0, None), output[-3000:]
    return output
