"""What stands for a machine of a cluster: a session of processes, with a folder of its own.

A process may leave its group, as Spark's Python workers do, and its session, as YARN's containers
do; but then it works in a folder of the machine. So a machine can be lost as machines are:
everything on it, at once, without a word.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from airflow_eos.local.embedded import guarded, wait_until_ready
from airflow_eos.local.java import java_program

_BARE_PATH = "/usr/bin:/bin"
_READY_SECONDS = 150.0  # several machines come up at once, on the two cores of one
_ROUNDS = 50  # of killing what was started while its parent was being killed


class Machine:
    """One machine; its name is that of its folder.

    Args:
        name: for people.

    Attributes:
        folder: its disk: home, logs, and where its programs work.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = Path(tempfile.mkdtemp(prefix=f"airflow-eos-{name}-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """What its program says."""
        return self.folder / "log"

    def run(
        self,
        command: Sequence[str],
        answers: Callable[[], bool],
        *,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start the one program that starts all others here; returns when it answers.

        Args:
            command: the program and its arguments.
            answers: whether it is ready.
            env: added to a bare environment: of this process nothing is inherited.

        Raises:
            LocalEnvironmentError: it ended, or was not ready in time.
        """
        world = {
            "PATH": _BARE_PATH,
            "HOME": str(self.folder),
            "JAVA_HOME": str(Path(java_program()).resolve().parents[1]),
            "LANG": "C.UTF-8",
        }
        self._process = guarded(
            command, folder=self.folder, log=self.log, env={**world, **(env or {})}
        )
        try:
            wait_until_ready(
                self._process, answers, called=self.name, log=self.log, seconds=_READY_SECONDS
            )
        except BaseException:  # Ctrl-C too must leave nothing behind
            self.lose()
            raise

    def pids(self) -> list[int]:
        """The processes that are on it now."""
        if self._process is None:
            return []
        return [
            pid
            for pid in _all_pids()
            if _session(pid) == self._process.pid or _works_in(pid, self.folder)
        ]

    def lose(self) -> None:
        """Kill (SIGKILL) all that runs on it; its disk stays as it is. Twice is harmless."""
        if self._process is None:
            return
        for _ in range(_ROUNDS):
            pids = [pid for pid in self.pids() if pid != self._process.pid]
            if not pids:
                break
            for number in (signal.SIGSTOP, signal.SIGKILL):  # a stopped one starts no other
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
        # The guard last: it is the session, and ends by itself once its program has.
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        self._process = None

    def close(self) -> None:
        """Lose it, and its disk."""
        self.lose()
        shutil.rmtree(self.folder, ignore_errors=True)


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _session(pid: int) -> int | None:
    """None where it has ended; a zombie too, which its parent has yet to take away."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    state, _parent, _group, session, *_ = stat.rpartition(")")[2].split()
    return None if state == "Z" else int(session)


def _works_in(pid: int, folder: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/cwd").readlink().is_relative_to(folder)
    except OSError:
        return False
