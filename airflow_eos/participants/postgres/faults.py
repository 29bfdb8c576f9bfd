"""What PostgreSQL refuses, in our words: what was found, and what to do next."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg
from psycopg import errors

from airflow_eos.errors import ConfigurationError, DeliveryError, EosError, Remedy, StoreError
from airflow_eos.participants.sql.answering import LostError

_GONE = (
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.IdleSessionTimeout,
    errors.IdleInTransactionSessionTimeout,
    # The victim of a deadlock, or of another's commit: all of it was rolled back; it may run again.
    errors.DeadlockDetected,
    errors.SerializationFailure,
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


def refuses_rows(error: psycopg.Error) -> bool:
    """Whether a row, or the table as it is, is why: values, keys, indexes, triggers, partitions."""
    return (error.sqlstate or "")[:2] in _OF_ROWS


def cannot_prepare(error: psycopg.Error, place: str) -> ConfigurationError:
    """Of what a transaction has done that forbids PREPARE TRANSACTION: no restart heals it."""
    return ConfigurationError(
        f"{_said('preparing the transaction', place, error)} A trigger or a function of the table "
        "does what no prepared transaction may (NOTIFY, a temporary table, an advisory lock of the "
        "session). Nothing was made visible.",
        Remedy(change="use PostgresSink(…, two_phase=False), which prepares none", start=True),
        Remedy(change="take that out of the trigger", start=True),
    )


def _meant(said: str, error: psycopg.Error) -> EosError:
    state = error.sqlstate
    if isinstance(error, _GONE):
        return LostError(said)
    if isinstance(error, psycopg.OperationalError) and (state is None or state[:2] == "08"):
        return LostError(said)
    if isinstance(error, (errors.OutOfMemory, errors.ObjectNotInPrerequisiteState)):
        return ConfigurationError(said, _SLOTS) if _of_slots(error) else StoreError(said)
    for kinds, meant, hint, remedies in _HINTS:
        if isinstance(error, kinds):
            return meant(f"{said} {hint}".strip(), *remedies)
    if refuses_rows(error):
        return DeliveryError(
            f"{said} The table does not take a row as it is; nothing was made visible.",
            Remedy(change="correct the rows in the query, or the table", start=True),
        )
    return StoreError(said)


def _of_slots(error: psycopg.Error) -> bool:
    return "prepared transactions" in str(error)


_OF_ROWS = ("09", "0A", "21", "22", "23", "38", "39", "44", "54", "P0")
"""Classes of SQLSTATE: what values, constraints, limits of an index and triggers raise."""
_SLOTS = Remedy(
    change="set max_prepared_transactions in postgresql.conf higher and restart the server, or "
    "let fewer tasks write (coalesce): each task of a batch needs one, and twice as many must be "
    "free (for several outputs at one server, the sum)"
)
_HINTS: tuple[
    tuple[tuple[type[psycopg.Error], ...], type[EosError], str, tuple[Remedy, ...]], ...
] = (
    (
        (errors.InsufficientPrivilege, errors.InvalidAuthorizationSpecification),
        ConfigurationError,
        "",
        (
            Remedy(
                change="grant the right, or connect as the role that the pipeline uses: only it, "
                "or a superuser, may end what it has prepared"
            ),
        ),
    ),
    (
        (errors.UndefinedTable, errors.UndefinedColumn, errors.InvalidSchemaName),
        ConfigurationError,
        "Is this the database that the pipeline delivers to?",
        (),
    ),
    (
        (errors.LockNotAvailable,),
        StoreError,
        (
            "Another transaction holds the row, the unique key or the table for longer than "
            "lock_timeout. Two tasks of a batch must not write one unique key (the second waits "
            "for a decision that waits for it). Nothing was made visible."
        ),
        (Remedy(change="repartition by the key, or wait for whoever holds it", start=True),),
    ),
    (
        (errors.QueryCanceled,),
        StoreError,
        (
            "Sessions of the pipeline have no statement_timeout of their role: a person cancelled "
            "it (pg_cancel_backend), or a pooler between does not keep what a session sets."
        ),
        (
            Remedy(
                change="connect to the server itself, or raise the pooler's limits (query_timeout) "
                "and run ALTER ROLE … SET statement_timeout = 0 for the pipeline's role",
                start=True,
            ),
        ),
    ),
    (
        (errors.ConfigurationLimitExceeded, errors.DiskFull),
        StoreError,
        "Nothing was made visible.",
        (
            Remedy(
                change="make room on the server's disk, or raise the limit that is named "
                "(temp_file_limit)",
                start=True,
            ),
        ),
    ),
)


def _said(doing: str, place: str, error: psycopg.Error) -> str:
    primary = error.diag.message_primary or str(error).strip().partition("\n")[0]
    state = f" ({error.sqlstate})" if error.sqlstate else ""
    return f"PostgreSQL {place}, while {doing}: {primary}{state}."
