"""A connection to a server that takes writes, made again when it is lost."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pymysql

from airflow_eos.participants.mysql.faults import meaning
from airflow_eos.participants.sql.answering import answered
from airflow_eos.participants.sql.mysql_servers import ABOUT, PINNED, TRANSACTIONS, require_witness
from airflow_eos.participants.sql.mysql_url import parts_of

T = TypeVar("T")
Connection = Any  # PyMySQL ships no types

_SILENT_S = 3600  # a statement may take long, and a server that is gone shows it by keepalives
_PROBES = 3
# Strict: what does not fit is refused, but for spaces at the end, which a task measures.
# Backslashes are what they are in a literal.
_MODE = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,NO_BACKSLASH_ESCAPES,NO_AUTO_VALUE_ON_ZERO"
# What a host that died had locked is free again; a session that was only idle is made again.
_IDLE = "SET SESSION wait_timeout = %s"


def asked(connection: Connection, statement: str, *given: Any) -> list[tuple[Any, ...]]:
    """The rows of an answer."""
    with connection.cursor() as cursor:
        cursor.execute(statement, given)
        return list(cursor.fetchall())


def done(connection: Connection, statement: str, *given: Any) -> int:
    """How many rows a statement found or wrote."""
    with connection.cursor() as cursor:
        return int(cursor.execute(statement, given))


def quoted(*names: str) -> str:
    """Names as they go into a statement that has arguments, with commas."""
    return ", ".join("`" + name.replace("`", "``").replace("%", "%%") + "`" for name in names)


def holes(values: Sequence[object]) -> str:
    """A place for each argument of IN; of nothing there is none."""
    return ", ".join(["%s"] * len(values)) or "NULL"


def printable(url: str) -> str:
    """Host, port and database, for people; never more."""
    parts = parts_of(url)
    return f"{parts['host']}:{parts['port']}/{parts['database']}"


def connected(url: str, *, lock_timeout_s: float, timeout_s: float) -> Connection:
    """A connection in autocommit to a server that takes writes, and keeps them.

    Raises:
        pymysql.MySQLError: nobody answers, or lets us in.
        ConfigurationError: a replica answers, or a commit may be lost there, or be late.
    """
    connection = pymysql.connect(
        **parts_of(url),
        autocommit=True,
        charset="utf8mb4",
        read_timeout=_SILENT_S,
        init_command=PINNED.format(locks_s=max(1, round(lock_timeout_s)), mode=_MODE),
        client_flag=pymysql.constants.CLIENT.FOUND_ROWS,
        defer_connect=True,
    )
    try:
        connection.connect(_line((connection.host, connection.port), max(2, int(timeout_s))))
        done(connection, TRANSACTIONS)
        require_witness(dict(asked(connection, ABOUT)), printable(url))
    except BaseException:
        if connection.open:
            connection.close()
        raise
    return connection


def _line(address: tuple[str, int], within_s: int) -> socket.socket:
    """A connection that ends when the other host has been gone for about ``within_s``."""
    try:
        line = socket.create_connection(address, within_s)
    except OSError as error:
        number = pymysql.constants.CR.CR_CONN_HOST_ERROR
        raise pymysql.OperationalError(number, str(error)) from error
    options = {
        "TCP_NODELAY": 1,
        "TCP_KEEPIDLE": within_s,
        "TCP_KEEPINTVL": max(1, within_s // _PROBES),
        "TCP_KEEPCNT": _PROBES,
        "TCP_USER_TIMEOUT": within_s * 1000,
    }
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in options.items():
        if hasattr(socket, name):  # some are Linux's alone
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return line


class Session:
    """A connection that is made again when it is lost, and after every error.

    Args:
        url: of the database.
        timeout_s: seconds in which the server must answer again.
        lock_timeout_s: seconds that a statement waits for another's lock.
    """

    def __init__(self, url: str, *, timeout_s: float, lock_timeout_s: float = 30.0) -> None:
        parts_of(url)
        self._url = url
        self._timeout_s = timeout_s
        self._lock_timeout_s = lock_timeout_s
        self._connection: Connection = None

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return printable(self._url)

    def run(self, doing: str, act: Callable[[Connection], T]) -> T:
        """Call ``act``, again on a new connection whenever one is lost.

        An error ends the connection, and with it what was not committed.

        Args:
            doing: for people.
            act: may be repeated at any point of it, changing nothing twice.

        Raises:
            StoreError: no answer within the time; what the server did is not known.
            ConfigurationError: a right, a table or a setting is missing.
        """

        def once() -> T:
            try:
                with meaning(doing, self.place):
                    if self._connection is None:
                        self._connection = connected(
                            self._url,
                            lock_timeout_s=self._lock_timeout_s,
                            timeout_s=self._timeout_s,
                        )
                        done(self._connection, _IDLE, max(1, round(self._timeout_s)))
                    return act(self._connection)
            except BaseException:
                self.close()
                raise

        return answered(once, anew=self.close, timeout_s=self._timeout_s)

    def close(self) -> None:
        """Let go of the connection; what is staged stays."""
        if self._connection is not None:
            with contextlib.suppress(pymysql.MySQLError):
                self._connection.close()
            self._connection = None
