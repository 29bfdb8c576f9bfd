"""Which server the tests of MySQL run on: Debian's MariaDB, or MySQL itself where it is told.

``make mysql`` unpacks MySQL (``scripts/mysql``), of whatever Debian has it, and tells where by
``EOS_TESTS_MYSQL``. It runs with the libraries it came with, by their own loader.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.support.servers.mariadb import EmbeddedMariaDb

TOLD = os.environ.get("EOS_TESTS_MYSQL")
EXACT_COLLATION = "utf8mb4_0900_bin" if TOLD else "utf8mb4_nopad_bin"
"""A collation by which no two texts are one key; each server has its own."""


class EmbeddedMySql(EmbeddedMariaDb):
    """The same of MySQL."""

    def _server(self, folder: Path) -> list[str]:
        (folder / "socket.lock").unlink(missing_ok=True)  # of one that was killed
        # In plain text, since a proxy of the tests reads along; packets as long as MariaDB's.
        alike = ["--tls-version=", "--max-allowed-packet=16M", "--mysqlx=OFF"]
        return [*self._mysqld(folder), *alike, f"--pid-file={folder / 'pid'}"]

    def _lay_out(self, folder: Path) -> None:
        command = [*self._mysqld(folder), "--initialize-insecure"]
        subprocess.run(command, check=True, capture_output=True)

    def _mysqld(self, folder: Path) -> list[str]:
        root = Path(TOLD or "")
        libraries = root / "usr/lib/x86_64-linux-gnu"
        loader = [str(libraries / "ld-linux-x86-64.so.2"), "--library-path", str(libraries)]
        program = [*loader, str(root / "usr/sbin/mysqld"), *self._common(folder)]
        return [*program, f"--basedir={root / 'usr'}", "--secure-file-priv=NULL"]


def mysql_server(*settings: str) -> EmbeddedMariaDb:
    """One that is not started yet; a context manager."""
    return (EmbeddedMySql if TOLD else EmbeddedMariaDb)(*settings)


def as_root(server: EmbeddedMariaDb) -> Callable[[str], None]:
    """By its socket, as whoever owns the server may."""
    import pymysql

    def execute(statement: str) -> None:
        with pymysql.connect(
            unix_socket=f"{server._folder}/socket", user="root", autocommit=True
        ) as connection:
            connection.cursor().execute(statement)

    return execute
