"""What MySQL refuses, in our words; its own hold values of rows, so only numbers are repeated."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import pymysql

from airflow_eos.errors import ConfigurationError, DeliveryError, EosError, Remedy, StoreError
from airflow_eos.participants.sql.answering import LostError

NO_SUCH_TABLE = 1146
LOCK_WAIT = 1205
_CLIENT = range(2000, 3000)  # numbers of the client library: no answer, or half of one
_GONE = {1053, 1077, 1079, 1080, 1184, 1927, 3169, 4031}
_AGAIN = {1213}  # the victim of a deadlock: all of it was rolled back
_RIGHTS = {1044, 1045, 1049, 1142, 1143, 1227, 1370, 1698}
# What a trigger signals or cannot do, checks of MySQL and of MariaDB, values that a column cannot
# hold, no partition for a row, a column that the table makes itself (MySQL's and MariaDB's), a
# number beyond the last, a row too large.
_CHECKS = {1644, 1645, 1442, 3819, 4025, 1292, 1364, 1365, 1366, 1411, 1690, 3140, 1526, 3105, 1906}
_CHECKS |= {1467, 1118}
# A column that is gone; a trigger whose definer, or a function that it calls, is.
_CHANGED = {1054, 1449, 1305}
_CANCELLED = {1317, 1969, 3024}  # killed, or by MariaDB's and by MySQL's limit of time
_OF_USER = {1203, 1226}  # its connections, or its statements an hour
_KEY = re.compile(r"for key '(?:[^'.]+\.)?([^']+)'$")  # MySQL 8.0.19 and newer name its table
_REFUSED = (pymysql.err.IntegrityError, pymysql.err.DataError)


def number_of(error: pymysql.MySQLError) -> int:
    """The server's or the library's number; 0 where there is none."""
    first = error.args[0] if error.args else 0
    return first if isinstance(first, int) else 0


def refuses_rows(error: pymysql.MySQLError) -> bool:
    """Whether a row, or the table as it is, is why."""
    return isinstance(error, (*_REFUSED, pymysql.err.ProgrammingError)) or (
        number_of(error) in _CHECKS | _CHANGED
    )


def reason(error: pymysql.MySQLError) -> str:
    """Its name and number, and the index where a key comes twice."""
    key = _KEY.search(str(error.args[-1])) if error.args else None
    return f"{type(error).__name__} {number_of(error)}" + (
        f", a second row for the unique key {key[1]!r}" if key else ""
    )


@contextlib.contextmanager
def meaning(doing: str, place: str) -> Iterator[None]:
    """Say in our words what the server refused.

    Raises:
        ConfigurationError: a right or a table is missing.
        DeliveryError: a row cannot be stored as it is.
        StoreError: everything else; a lost connection as a kind of its own, for ``Session``.
    """
    try:
        yield
    except pymysql.MySQLError as error:
        raise _meant(f"MySQL {place}, while {doing}: {reason(error)}.", error) from error


def _meant(said: str, error: pymysql.MySQLError) -> EosError:
    number = number_of(error)
    if number in _CLIENT or number in _GONE | _AGAIN or isinstance(error, pymysql.InterfaceError):
        return LostError(said)
    if number in _RIGHTS:
        return ConfigurationError(
            f"{said} The user, its password or its rights are not those of the pipeline: GRANT "
            "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP on the database to it."
        )
    if number == NO_SUCH_TABLE:
        return ConfigurationError(f"{said} Is this the database that the pipeline delivers to?")
    if number == LOCK_WAIT:
        return StoreError(
            f"{said} Another transaction holds a row or the table for longer than lock_timeout. "
            "Nothing was made visible.",
            Remedy(change="wait for whoever holds it", start=True),
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
    if isinstance(error, _REFUSED) or number in _CHECKS:
        return DeliveryError(
            f"{said} The table does not take a row as it is; nothing was made visible.",
            Remedy(change="correct the rows in the query, or the table", start=True),
        )
    return StoreError(said)
