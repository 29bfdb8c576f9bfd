"""A private Redis server on this machine, gone with whoever started it."""

from __future__ import annotations

import shutil
import socket
import tempfile
from pathlib import Path

from airflow_eos.errors import LocalEnvironmentError
from airflow_eos.local.broker import HOST, free_ports
from tests.support.servers.process import EmbeddedProcess

_PORT_ATTEMPTS = 3  # another process can take a port between our look and the server's bind


class EmbeddedRedis(EmbeddedProcess):
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
        super().__init__()
        self._settings = settings

    @property
    def url(self) -> str:
        """For a client: database 0."""
        return f"redis://{HOST}:{self.port}/0"

    def start(self) -> None:
        """Start the server, on its data where it ran before; returns when it answers."""
        program = _program()
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="airflow-eos-redis-"))
        asked = self.port
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            self.port = asked or free_ports(1)[0]
            server = [program, "--bind", HOST, "--port", str(self.port), "--dir", str(self._folder)]
            kept = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
            try:
                self._run([*server, *kept, *self._settings], self._folder, self._answers)
            except LocalEnvironmentError as error:
                if "in use" not in str(error) or attempt == _PORT_ATTEMPTS:
                    raise
            else:
                return

    def _answers(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), timeout=1.0) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(7) == b"+PONG\r\n"  # not -LOADING
        except OSError:
            return False


def _program() -> str:
    found = shutil.which("redis-server")
    if found is None:
        raise LocalEnvironmentError(
            "There is no redis-server on PATH. Install the package redis-server (Debian, Ubuntu: "
            "apt-get install redis-server) or redis (Fedora, Homebrew)."
        )
    return found
