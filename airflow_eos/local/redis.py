"""A private Redis server on this machine, gone with whoever started it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from airflow_eos.errors import LocalEnvironmentError
from airflow_eos.local.layout import HOST, free_ports

_HERE = Path(__file__).parent
_READY_SECONDS = 60.0  # on a machine that stands still for a while now and then
_PORT_ATTEMPTS = 3  # another process can take a port between our look and the server's bind


class EmbeddedRedis:
    """``redis-server`` on a free port of the loopback interface; a context manager.

    Its data (every write is synced) lives in a temporary folder and is removed at the end. It does
    not outlive this process, whatever ends that one.

    Args:
        *settings: further arguments of ``redis-server``, such as ``"--maxmemory-policy"``, …

    Attributes:
        port: of the server, the same after :meth:`kill` and :meth:`start`; 0 before the first.

    Raises:
        LocalEnvironmentError: from ``start``: there is no such program, or it does not come up.
    """

    def __init__(self, *settings: str) -> None:
        self.port = 0
        self._settings = settings
        self._data: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """For a client: database 0."""
        return f"redis://{HOST}:{self.port}/0"

    def start(self) -> None:
        """Start the server, on its data where it ran before; returns when it answers."""
        program = _program()
        if self._data is None:
            self._data = Path(tempfile.mkdtemp(prefix="airflow-eos-redis-"))
        asked = self.port
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            self.port = asked or free_ports(1)[0]
            self._process = self._spawn(program, self._data)
            try:
                self._wait_until_ready()
            except BaseException as error:  # Ctrl-C too must leave nothing behind
                taken = "in use" in str(error)
                self.kill()
                if not taken or attempt == _PORT_ATTEMPTS:
                    raise
            else:
                return

    def kill(self) -> None:
        """End it with SIGKILL, guard and all; its data stays for :meth:`start`."""
        if self._process is not None:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)  # its guard, and the server
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End it and remove its data. Closing twice is harmless."""
        self.kill()
        if self._data is not None:
            shutil.rmtree(self._data, ignore_errors=True)
            self._data = None

    def _spawn(self, program: str, data: Path) -> subprocess.Popen[bytes]:
        guard = [sys.executable, "-I", "-S", str(_HERE / "guard.py"), str(os.getpid()), str(data)]
        server = [program, "--bind", HOST, "--port", str(self.port), "--dir", str(data)]
        kept = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        with (data / "log").open("ab") as out:
            return subprocess.Popen(
                [*guard, *server, *kept, *self._settings],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal is for us, not for the server
            )

    def _wait_until_ready(self) -> None:
        assert self._process is not None  # noqa: S101  it was spawned
        deadline = time.monotonic() + _READY_SECONDS
        while not _answers(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                assert self._data is not None  # noqa: S101  it was made
                said = (self._data / "log").read_text(errors="replace").splitlines()[-5:]
                raise LocalEnvironmentError(
                    "redis-server ended, or was not ready in time:\n"
                    + "\n".join(said)
                    + "\nTry again; the machine may be too busy."
                )
            time.sleep(0.02)


def _program() -> str:
    found = shutil.which("redis-server")
    if found is None:
        raise LocalEnvironmentError(
            "There is no redis-server on PATH. Install the package redis-server (Debian, Ubuntu: "
            "apt-get install redis-server) or redis (Fedora, Homebrew)."
        )
    return found


def _answers(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1.0) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(7) == b"+PONG\r\n"  # not -LOADING
    except OSError:
        return False
