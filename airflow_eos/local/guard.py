"""Run one program and end it when the process that started it is gone, even by SIGKILL.

Started as a script: ``python guard.py PARENT_PID FOLDER PROGRAM ARGUMENT...``. It imports the
standard library only, so that it costs a few milliseconds and little memory.

``PR_SET_PDEATHSIG`` alone would not do in the parent: it fires when the *thread* that started the
child ends, and exists on Linux only. So the guard watches the pid of its parent on every system. On
Linux the single-threaded guard uses the signal to end the program if it is itself killed (SIGKILL).
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from types import FrameType

_POLL = 0.2  # seconds between two looks at the parent
_PR_SET_PDEATHSIG = 1


def _die_with_guard() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run(parent: int, folder: str, command: list[str]) -> int:
    """Run ``command`` until it ends by itself, or until ``parent`` is gone.

    Args:
        parent: pid of the process without which the program ends.
        folder: data of the program, removed when the parent is gone and cannot remove it.
        command: program and arguments.

    Returns:
        The exit status of the program, or 1 where the parent went away.
    """
    # preexec_fn is safe here: this process has one thread.
    child = subprocess.Popen(command, preexec_fn=_die_with_guard)

    def forward(number: int, _frame: FrameType | None) -> None:
        child.send_signal(number)

    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to act on
    while child.poll() is None:
        if os.getppid() != parent:
            child.kill()
            child.wait()
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                os.rmdir(os.path.dirname(folder))  # noqa: PTH106, PTH120
            return 1
        time.sleep(_POLL)
    return child.returncode


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
