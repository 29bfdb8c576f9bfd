"""Connections to a PostgreSQL primary of one history, and what its errors mean.

A lost connection says nothing about what the server did. So a function that is given to
:meth:`PostgresConnection.run` may run twice, and finds out by itself what its first run did.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

import psycopg
from psycopg import conninfo, errors

from airflow_eos.core.closing import closed_on_error
from airflow_eos.errors import ConfigurationError, DeliveryError, EosError, Remedy, StoreError
from airflow_eos.kinds.sql.participant import DatabaseConnection, LostError
from airflow_eos.kinds.sql.servers import (
    FAILOVER,
    OF_SESSION,
    OF_TRANSACTION,
    attentive,
    keywords_of,
)

_GONE = (
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.IdleSessionTimeout,
    errors.IdleInTransactionSessionTimeout,
    # The victim of a deadlock or of another's commit was rolled back whole; it may run again.
    errors.DeadlockDetected,
    errors.SerializationFailure,
)


@contextlib.contextmanager
def meaning(doing: str, address: str) -> Iterator[None]:
    """Translate PostgreSQL errors into ours, with its hint; the detail holds values of rows.

    Raises:
        ConfigurationError: a right, a table or a setting is missing.
        DeliveryError: a row cannot be stored as it is.
        StoreError: any other error; :class:`LostError` where the connection is lost.
    """
    try:
        yield
    except psycopg.Error as error:
        raise _meant(_said(doing, address, error), error) from error


def refuses_rows(error: psycopg.Error) -> bool:
    """Whether the error comes from a row or the table: a value, key, index, trigger, partition."""
    return (error.sqlstate or "")[:2] in _OF_ROWS


def cannot_prepare(error: psycopg.Error, address: str) -> ConfigurationError:
    """Return the error for a refused PREPARE TRANSACTION, in any language: no restart heals it."""
    said = _said("preparing the transaction", address, error)
    if not isinstance(error, errors.FeatureNotSupported):
        return ConfigurationError(said, _SLOTS)
    return ConfigurationError(
        f"{said} A trigger or a function of the table "
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
    for kinds, meant, hint, remedies in _HINTS:
        if isinstance(error, kinds):
            return meant(f"{said} {hint}".strip(), *remedies)
    if refuses_rows(error):
        return DeliveryError(
            f"{said} The table does not take a row as it is; nothing was made visible.",
            Remedy(change="correct the rows in the query, or the table", start=True),
        )
    return StoreError(said)


_OF_ROWS = ("09", "0A", "21", "22", "23", "38", "39", "44", "54", "P0")
"""The SQLSTATE classes of errors by values, constraints, limits of an index and triggers."""
UNPREPARED = (
    errors.FeatureNotSupported,  # the transaction did what PREPARE forbids
    errors.OutOfMemory,  # no slot is free
    errors.ObjectNotInPrerequisiteState,  # max_prepared_transactions is 0
)
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
        (Remedy(change="repartition by the key, or wait until its holder ends", start=True),),
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


def _said(doing: str, address: str, error: psycopg.Error) -> str:
    primary = error.diag.message_primary or str(error).strip().partition("\n")[0]
    state = f" ({error.sqlstate})" if error.sqlstate else ""
    hint = f" {error.diag.message_hint}" if error.diag.message_hint else ""
    return f"PostgreSQL {address}, while {doing}: {primary}{state}.{hint}"


# --- session --------------------------------------------------------------------------------------


Connection = psycopg.Connection[tuple[Any, ...]]

_OLDEST = 120_000
_REFUSALS = ("authentication failed", "no pg_hba.conf entry", "does not exist", "no password")
HISTORY = """
(SELECT system_identifier::text FROM pg_control_system()) || '/' || current_database(),
CASE WHEN pg_is_in_recovery() THEN 0
     ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int END
"""
"""The columns of a :class:`History`."""
# lock_timeout: a statement of the pipeline must not wait for ever.
_PREPARED = f"SELECT pg_is_in_recovery(), set_config('lock_timeout', %s, false), {HISTORY}"


class History(NamedTuple):
    """The identity of a server's history: its system identifier and its timeline.

    Copies of a cluster share ``system``; a standby that is promoted begins a new ``timeline``, so
    of two primaries with one system the greater timeline is the later one.
    """

    system: str
    timeline: int


@contextlib.contextmanager
def durable(connection: Connection) -> Iterator[None]:
    """Run a transaction that is on disk at its end, whatever connection a pooler gives it."""
    with connection.transaction():
        connection.execute(OF_TRANSACTION)
        yield


def checked_dsn(reach: object) -> str:
    """Return the connection string of ``reach``: a libpq string or URL, or its keywords.

    Raises:
        ConfigurationError: it is neither; its text is not quoted, since it may hold a password.
    """
    expected = (
        "expected 'host=… dbname=… user=…', a postgresql:// URL with each part in "
        "percent-encoding, or a dict of such keywords"
    )
    try:
        if isinstance(reach, str) and reach.strip():
            keywords_of(reach)
            return reach
        if isinstance(reach, Mapping) and reach:
            return conninfo.make_conninfo(
                **(keywords_of(reach["dsn"]) if "dsn" in reach else reach)
            )
    except (psycopg.Error, TypeError):
        pass
    raise ConfigurationError(
        f"A connection to PostgreSQL was not given, or cannot be read: {expected} (libpq's)."
    )


def printable(dsn: str) -> str:
    """Return host, port and database of a connection string; never its login."""
    parsed = {**conninfo.conninfo_to_dict(dsn)}
    host = parsed.get("host") or parsed.get("hostaddr") or "localhost"
    return f"{host}:{parsed.get('port') or 5432}/{parsed.get('dbname') or ''}"


def connected(dsn: str, *, lock_timeout_s: float, timeout_s: float) -> tuple[Connection, History]:
    """Connect to the primary, in autocommit; return the connection and the server's history.

    Raises:
        psycopg.OperationalError: no server answers.
        StoreError: a standby answers, whose data lags; after a failover it may be a primary soon.
        ConfigurationError: the server is too old, or lets nobody in with this connection.
    """
    with closed_on_error(_connection(dsn, timeout_s)) as connection:
        # A statement that waited for another's commit must see its rows, whatever the default is.
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        connection.read_only = False
        connection.execute(OF_SESSION)
        found = connection.execute(_PREPARED, [f"{max(1, round(lock_timeout_s * 1000))}ms"])
        standby, _, *history = found.fetchone() or ()
        version = connection.info.server_version
        if version < _OLDEST:
            raise ConfigurationError(
                f"{printable(dsn)} runs PostgreSQL {version // 10000}: expected "
                f"{_OLDEST // 10000} or later."
            )
        if standby:
            raise StoreError(
                f"{printable(dsn)} is a standby: it lags, so no outcome can be read from it. Name "
                "the primary, or add target_session_attrs=primary to the connection.",
                FAILOVER,
            )
    return connection, History(*history)


def _connection(dsn: str, timeout_s: float) -> Connection:
    """Connect in autocommit; a server that falls silent is given up after ``timeout_s``."""
    try:
        return psycopg.connect(
            dsn,
            autocommit=True,
            # A pooler may give each transaction another connection, without prepared statements.
            prepare_threshold=None,
            client_encoding="utf8",
            application_name="airflow_eos",
            **attentive(dsn, timeout_s),
        )
    except psycopg.OperationalError as error:
        if any(reason in str(error) for reason in _REFUSALS):
            raise ConfigurationError(
                f"PostgreSQL {printable(dsn)} lets nobody in with this connection: {error}"
            ) from None
        raise


class PostgresConnection(DatabaseConnection):
    """See :class:`DatabaseConnection`: by a libpq DSN, and always to a server of one history."""

    _history: History | None = None

    @property
    def address(self) -> str:
        """The address of the database, without secrets."""
        return printable(self._reach)

    @property
    def history(self) -> History:
        """The history of the server; all connections have had the same.

        Raises:
            StoreError, ConfigurationError: the server cannot be reached.
        """
        self.run("asking which server it is", lambda _: None)
        assert self._history is not None  # noqa: S101 - there was a connection
        return self._history

    def _open(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection, history = connected(
                self._reach, lock_timeout_s=self._lock_timeout_s, timeout_s=self._timeout_s
            )
            # Only a start looks for what a failover has lost; so another start is forced.
            if self._history not in (None, history):
                self.close()
                raise StoreError(
                    f"{self.address} is another server than before, or was failed over: "
                    f"{self._history} became {history}. Nothing was concluded. Start again: the "
                    "start looks whether what was delivered is still there."
                )
            self._history = history
        return cast("Connection", self._connection)

    def _meaning(self, doing: str) -> contextlib.AbstractContextManager[None]:
        return meaning(doing, self.address)

    def _close(self, connection: Connection) -> None:
        with contextlib.suppress(psycopg.Error):
            connection.close()
