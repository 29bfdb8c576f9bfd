"""Connections to a MySQL server that takes writes, and what its errors mean."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pymysql

from airflow_eos.errors import ConfigurationError, DeliveryError, EosError, Remedy, StoreError
from airflow_eos.kinds.sql.participant import DatabaseConnection, LostError
from airflow_eos.kinds.sql.servers import (
    ABOUT,
    PINNED,
    ROW_ERRORS,
    TRANSACTIONS,
    number_of,
    of_innodb,
    parts_of,
    reason,
    require_witness,
)

NO_SUCH_TABLE = 1146
LOCK_WAIT = 1205
_CLIENT = range(2000, 3000)  # error numbers of the client library: no answer, or half of one
_GONE = {1053, 1077, 1079, 1080, 1184, 1927, 3169, 4031}
_AGAIN = {1213}  # the victim of a deadlock: its whole transaction was rolled back
_RIGHTS = {1044, 1045, 1049, 1142, 1143, 1227, 1370, 1698}
# A column is gone, or a trigger's definer, or a function that a trigger calls.
_CHANGED = {1054, 1449, 1305}
_CANCELLED = {1317, 1969, 3024}  # killed, or ended by a time limit (MariaDB's, MySQL's)
_OF_USER = {1203, 1226}  # the user's limit of connections, or of statements an hour
_REFUSED = (pymysql.err.IntegrityError, pymysql.err.DataError)


def refuses_rows(error: pymysql.MySQLError) -> bool:
    """Whether the error comes from a row, or from the table as it is."""
    return isinstance(error, (*_REFUSED, pymysql.err.ProgrammingError)) or (
        number_of(error) in ROW_ERRORS | _CHANGED
    )


@contextlib.contextmanager
def meaning(doing: str, address: str) -> Iterator[None]:
    """Translate MySQL errors into this package's errors.

    Raises:
        ConfigurationError: a right or a table is missing.
        DeliveryError: a row cannot be stored as it is.
        StoreError: any other error; :class:`LostError` where the connection is lost.
    """
    try:
        yield
    except pymysql.MySQLError as error:
        raise _meant(f"MySQL {address}, while {doing}: {reason(error)}.", error) from error


def _meant(said: str, error: pymysql.MySQLError) -> EosError:
    number = number_of(error)
    if number in _CLIENT or number in _GONE | _AGAIN or isinstance(error, pymysql.InterfaceError):
        return LostError(said)
    if number in _RIGHTS:
        return ConfigurationError(
            f"{said} The user, its password or its rights are not those of the pipeline: GRANT "
            "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, TRIGGER on the database to it."
        )
    if number == NO_SUCH_TABLE:
        return ConfigurationError(f"{said} Is this the database that the pipeline delivers to?")
    if number == LOCK_WAIT:
        return StoreError(
            f"{said} Another transaction holds a row or the table for longer than lock_timeout. "
            "Nothing was made visible.",
            Remedy(change="wait until the session that holds it ends", start=True),
        )
    if number in _CANCELLED:
        return StoreError(
            f"{said} Sessions of the pipeline have no limit of time of their user: a person killed "
            "it (KILL QUERY), or a proxy between does. Nothing was made visible.",
            Remedy(change="connect to the server itself, or raise the proxy's limits", start=True),
        )
    if number in _OF_USER:
        return StoreError(
            f"{said} A limit of the user, which no session can change. Nothing was made visible.",
            Remedy(
                change="run ALTER USER … WITH MAX_QUERIES_PER_HOUR 0 MAX_UPDATES_PER_HOUR 0 "
                "MAX_CONNECTIONS_PER_HOUR 0 MAX_USER_CONNECTIONS 0 for the pipeline's user",
                start=True,
            ),
        )
    if isinstance(error, _REFUSED) or number in ROW_ERRORS:
        return DeliveryError(
            f"{said} The table does not take a row as it is; nothing was made visible.",
            Remedy(change="correct the rows in the query, or the table", start=True),
        )
    return StoreError(said)


# --- session --------------------------------------------------------------------------------------


T = TypeVar("T")
Connection = Any  # PyMySQL ships no types

_SILENT_S = 3600  # a statement may take long; keepalives tell that a server is gone
_PROBES = 3
# Strict: values that do not fit are refused, but for spaces at the end, which a task measures.
# A backslash in a literal is no escape.
_MODE = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,NO_BACKSLASH_ESCAPES,NO_AUTO_VALUE_ON_ZERO"
# So the locks of a host that died become free; a session that was only idle is opened again.
_IDLE = "SET SESSION wait_timeout = %s"


def asked(connection: Connection, statement: str, *given: Any) -> list[tuple[Any, ...]]:
    """Run a statement and return the rows of its answer."""
    with connection.cursor() as cursor:
        cursor.execute(statement, given)
        return list(cursor.fetchall())


def done(connection: Connection, statement: str, *given: Any) -> int:
    """Run a statement and return how many rows it found or wrote."""
    with connection.cursor() as cursor:
        return int(cursor.execute(statement, given))


def quoted(*names: str) -> str:
    """Quote names for a statement that has arguments, and join them by commas."""
    return ", ".join("`" + name.replace("`", "``").replace("%", "%%") + "`" for name in names)


def holes(values: Sequence[object]) -> str:
    """Return a placeholder for each value of an IN list; ``NULL`` for an empty one."""
    return ", ".join(["%s"] * len(values)) or "NULL"


def printable(url: str) -> str:
    """Return host, port and database of a URL; never its login."""
    parts = parts_of(url)
    return f"{parts['host']}:{parts['port']}/{parts['database']}"


def connected(url: str, *, lock_timeout_s: float, timeout_s: float) -> Connection:
    """Connect, in autocommit, to a server that takes writes and keeps them.

    Raises:
        pymysql.MySQLError: no server answers, or it refuses the login.
        StoreError: a replica answers.
        ConfigurationError: a commit may be lost there, or be late.
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
        settings = dict(asked(connection, ABOUT))
        require_witness(settings, printable(url))
        for statement in of_innodb(settings):
            done(connection, statement)
    except BaseException:
        if connection.open:
            connection.close()
        raise
    return connection


def _line(address: tuple[str, int], within_s: int) -> socket.socket:
    """Open a socket that ends when the other host has been gone for about ``within_s``."""
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
        if hasattr(socket, name):  # only Linux has some of them
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return line


class MySqlConnection(DatabaseConnection):
    """See :class:`DatabaseConnection`: reached by a URL, and opened again after every error."""

    @property
    def address(self) -> str:
        """The address of the database, without secrets."""
        return printable(self._reach)

    def run(self, doing: str, act: Callable[[Connection], T]) -> T:
        """See :meth:`DatabaseConnection.run`: an error also rolls back what was not committed."""
        try:
            return super().run(doing, act)
        except BaseException:
            self.close()
            raise

    def _open(self) -> Connection:
        if self._connection is None:
            self._connection = connected(
                self._reach, lock_timeout_s=self._lock_timeout_s, timeout_s=self._timeout_s
            )
            done(self._connection, _IDLE, max(1, round(self._timeout_s)))
        return self._connection

    def _meaning(self, doing: str) -> contextlib.AbstractContextManager[None]:
        return meaning(doing, self.address)

    def _close(self, connection: Connection) -> None:
        with contextlib.suppress(pymysql.MySQLError):
            connection.close()
