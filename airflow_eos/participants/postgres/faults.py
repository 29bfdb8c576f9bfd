"""What PostgreSQL refuses, in our words: what was found, and what to do next."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg
from psycopg import errors

from airflow_eos.errors import ConfigurationError, DeliveryError, EosError, StoreError
from airflow_eos.participants.sql.answering import LostError

_GONE = (
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.IdleSessionTimeout,
)


@contextlib.contextmanager
def meaning(doing: str, place: str) -> Iterator[None]:
    """Say in our words what the server refused; only its first line, the others hold rows.

    Raises:
        ConfigurationError: a right, a table or a setting is missing.
        DeliveryError: a row cannot be stored as it is.
        StoreError: everything else; a lost connection as a kind of its own, for ``Session``.
    """
    try:
        yield
    except psycopg.Error as error:
        raise _meant(_said(doing, place, error), error) from error


def _meant(said: str, error: psycopg.Error) -> EosError:
    state = error.sqlstate
    if isinstance(error, _GONE):
        return LostError(said)
    if isinstance(error, psycopg.OperationalError) and (state is None or state[:2] == "08"):
        return LostError(said)
    if isinstance(error, (errors.OutOfMemory, errors.ObjectNotInPrerequisiteState)):
        return ConfigurationError(f"{said} {_SLOTS}") if _of_slots(error) else StoreError(said)
    for kinds, meant, hint in _HINTS:
        if isinstance(error, kinds):
            return meant(f"{said} {hint}")
    return StoreError(said)


def _of_slots(error: psycopg.Error) -> bool:
    return "prepared transactions" in str(error)


_SLOTS = (
    "Each task of a batch needs one, and twice as many must be free (for several outputs at one "
    "server, the sum): set max_prepared_transactions in postgresql.conf higher and restart the "
    "server, or let fewer tasks write (coalesce)."
)
_HINTS: tuple[tuple[tuple[type[psycopg.Error], ...], type[EosError], str], ...] = (
    (
        (errors.InsufficientPrivilege, errors.InvalidAuthorizationSpecification),
        ConfigurationError,
        (
            "Grant the right, or connect as the role that the pipeline uses: only it, or a "
            "superuser, may end what it has prepared."
        ),
    ),
    (
        (errors.UndefinedTable, errors.UndefinedColumn, errors.InvalidSchemaName),
        ConfigurationError,
        ("Is this the database that the pipeline delivers to?"),
    ),
    (
        (errors.LockNotAvailable,),
        StoreError,
        (
            "Another transaction holds the row, the unique key or the table for longer than "
            "lock_timeout. Two tasks of a batch must not write one unique key (the second waits "
            "for a decision that waits for it): repartition by the key. Nothing was made visible; "
            "try again."
        ),
    ),
    (
        (errors.DataError, errors.IntegrityError),
        DeliveryError,
        (
            "The table does not take a row as it is; nothing was made visible. Correct the rows in "
            "the query, or the table."
        ),
    ),
)


def _said(doing: str, place: str, error: psycopg.Error) -> str:
    primary = error.diag.message_primary or str(error).strip().partition("\n")[0]
    state = f" ({error.sqlstate})" if error.sqlstate else ""
    return f"PostgreSQL {place}, while {doing}: {primary}{state}."
