"""A private MariaDB server on this machine, for tests and examples; gone with its starter."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

from airflow_eos.errors import LocalEnvironmentError
from airflow_eos.local.broker import HOST, free_ports
from tests.support.servers.process import EmbeddedProcess

_LAY_OUT_TRIES = 3


class EmbeddedMariaDb(EmbeddedProcess):
    """One server on the loopback interface with a password of its own; a context manager.

    Args:
        *settings: further arguments of ``mariadbd``, which win over ours.

    Attributes:
        port: where it listens, the same after :meth:`kill` and :meth:`start`; 0 before the first.

    Raises:
        LocalEnvironmentError: from ``start``: no binaries, or a server that does not come up.
    """

    def __init__(self, *settings: str) -> None:
        super().__init__()
        self._settings = settings
        self._password = secrets.token_hex(16)

    @property
    def url(self) -> str:
        """How its user ``eos`` reaches the database ``eos``."""
        return f"mysql://eos:{self._password}@{HOST}:{self.port}/eos"

    def start(self) -> None:
        """Start it, the first time or again after ``kill``; returns when it answers."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="eos-my-"))
            (self.port,) = free_ports(1)
            self._lay_out(self._folder)
            self._write_first(self._folder)
        server = [*self._server(self._folder), f"--port={self.port}"]
        server.append(f"--socket={self._folder / 'socket'}")
        kept = [f"--bind-address={HOST}", "--innodb-flush-log-at-trx-commit=1"]
        small = ["--innodb-buffer-pool-size=16M", "--skip-name-resolve", "--skip-log-bin"]
        first = f"--init-file={self._folder / 'init.sql'}"
        self._run([*server, *kept, *small, *self._settings, first], self._folder, self._answers)

    def _answers(self) -> bool:
        """The server greets whoever connects, once its init file has run."""
        try:
            with socket.create_connection((HOST, self.port), timeout=1.0) as connection:
                return len(connection.recv(5)) > 4
        except OSError:
            return False

    def _server(self, folder: Path) -> list[str]:
        """The program, with where its data is."""
        return [_program("mariadbd"), *self._common(folder)]

    def _lay_out(self, folder: Path) -> None:
        command = [_program("mariadb-install-db"), *self._common(folder)]
        more = ["--auth-root-authentication-method=normal", "--skip-test-db"]
        # On a busy machine it stumbles over its own temporary tables (1051); it may be repeated.
        for _ in range(_LAY_OUT_TRIES):
            made = subprocess.run([*command, *more], capture_output=True, text=True, check=False)
            if not made.returncode:
                break
        else:
            self.close()
            raise LocalEnvironmentError(f"mariadb-install-db failed:\n{made.stderr[-2000:]}")

    def _write_first(self, folder: Path) -> None:
        """What the server runs at each start: its database and user."""
        secret = folder / "init.sql"
        secret.touch(mode=0o600)
        secret.write_text(
            "CREATE DATABASE IF NOT EXISTS eos CHARACTER SET utf8mb4;\n"
            f"CREATE USER IF NOT EXISTS eos@'%' IDENTIFIED BY '{self._password}';\n"
            "GRANT ALL ON eos.* TO eos@'%';\n",
            encoding="utf-8",
        )

    def _common(self, folder: Path) -> list[str]:
        user = getpass.getuser()  # also root: nobody else reads the folder
        # A server that starts removes the temporary tables in there, of others too.
        own = folder / "tmp"
        own.mkdir(exist_ok=True)
        data = f"--datadir={folder / 'data'}"
        return ["--no-defaults", data, f"--tmpdir={own}", f"--user={user}"]


def _program(name: str) -> str:
    found = shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin")))
    if found is None:
        raise LocalEnvironmentError(
            f"There is no {name} on PATH. Install MariaDB's server (Debian, Ubuntu: apt-get "
            "install mariadb-server), then try again."
        )
    return found
