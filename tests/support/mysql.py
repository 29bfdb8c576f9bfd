"""Which server the tests of MySQL run on: Debian's MariaDB, or MySQL itself where it is told.

``make mysql`` unpacks MySQL (``scripts/mysql``), of whatever Debian has it, and tells where by
``EOS_TESTS_MYSQL``. It runs with the libraries it came with, by their own loader.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import tempfile
from pathlib import Path

from airflow_eos.local.embedded import EmbeddedProcess
from airflow_eos.local.layout import HOST, free_ports
from airflow_eos.local.mariadb import EmbeddedMariaDb

TOLD = os.environ.get("EOS_TESTS_MYSQL")
EXACT_COLLATION = "utf8mb4_0900_bin" if TOLD else "utf8mb4_nopad_bin"
"""A collation by which no two texts are one key; each server has its own."""


class EmbeddedMySql(EmbeddedProcess):
    """What :class:`EmbeddedMariaDb` is, of MySQL."""

    def __init__(self, *settings: str) -> None:
        super().__init__()
        self._settings = settings
        self._password = secrets.token_hex(16)

    @property
    def url(self) -> str:
        return f"mysql://eos:{self._password}@{HOST}:{self.port}/eos"

    def start(self) -> None:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="eos-my-"))
            (self.port,) = free_ports(1)
            subprocess.run(
                [*_mysqld(self._folder), "--initialize-insecure"], check=True, capture_output=True
            )
            secret = self._folder / "init.sql"
            secret.touch(mode=0o600)
            secret.write_text(
                "CREATE DATABASE IF NOT EXISTS eos CHARACTER SET utf8mb4;\n"
                f"CREATE USER IF NOT EXISTS eos@'%' IDENTIFIED BY '{self._password}';\n"
                "GRANT ALL ON eos.* TO eos@'%';\n",
                encoding="utf-8",
            )
        (self._folder / "socket.lock").unlink(missing_ok=True)  # of one that was killed
        server = [*_mysqld(self._folder), f"--port={self.port}", f"--bind-address={HOST}"]
        server += [f"--socket={self._folder / 'socket'}", f"--pid-file={self._folder / 'pid'}"]
        server += ["--mysqlx=OFF", "--innodb-flush-log-at-trx-commit=1", "--skip-name-resolve"]
        # In plain text, since a proxy of the tests reads along; packets as long as MariaDB's.
        server += ["--tls-version=", "--max-allowed-packet=16M"]
        server += ["--innodb-buffer-pool-size=16M", "--skip-log-bin", *self._settings]
        first = f"--init-file={self._folder / 'init.sql'}"
        self._run([*server, first], self._folder, self._answers)

    def _answers(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), timeout=1.0) as connection:
                return len(connection.recv(5)) > 4
        except OSError:
            return False


MySqlServer = EmbeddedMariaDb | EmbeddedMySql


def mysql_server(*settings: str) -> MySqlServer:
    """One that is not started yet; a context manager."""
    return EmbeddedMySql(*settings) if TOLD else EmbeddedMariaDb(*settings)


def _mysqld(folder: Path) -> list[str]:
    assert TOLD, "EOS_TESTS_MYSQL names no folder"
    root = Path(TOLD)
    libraries = root / "usr/lib/x86_64-linux-gnu"
    loader = [str(libraries / "ld-linux-x86-64.so.2"), "--library-path", str(libraries)]
    own = folder / "tmp"
    own.mkdir(exist_ok=True)
    told = ["--no-defaults", f"--basedir={root / 'usr'}", f"--datadir={folder / 'data'}"]
    return [
        *loader,
        str(root / "usr/sbin/mysqld"),
        *told,
        f"--tmpdir={own}",
        "--user=root",
        "--secure-file-priv=NULL",
    ]
