"""What MySQL refuses, in our words; its own hold values of rows, so only numbers are repeated."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import pymysql

from airflow_eos.errors import ConfigurationError, DeliveryError, EosError, StoreError
from airflow_eos.participants.sql.answering import LostError

NO_SUCH_TABLE = 1146
LOCK_WAIT = 1205
_CLIENT = range(2000, 3000)  # numbers of the client library: no answer, or half of one
_GONE = {1053, 1077, 1079, 1080, 1184, 1927, 3169, 4031}
_AGAIN = {1213}  # the victim of a deadlock: all of it was rolled back
_RIGHTS = {1044, 1045, 1049, 1142, 1143, 1227, 1370, 1698}
# A trigger's SIGNAL, checks of MySQL and of MariaDB, values that a column cannot hold, no partition
# for a row, a column that the table makes itself (MySQL's and MariaDB's).
_CHECKS = {1644, 3819, 4025, 1292, 1364, 1366, 1526, 3105, 1906}
# A column that is gone; a trigger whose definer is.
_CHANGED = {1054, 1449}
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
            "Nothing was made visible; try again."
        )
    if isinstance(error, _REFUSED) or number in _CHECKS:
        return DeliveryError(
            f"{said} The table does not take a row as it is; nothing was made visible. Correct the "
            "rows in the query, or the table."
        )
    return StoreError(said)
