"""SQL servers: which may be a witness, the limits of their sessions, how they are reached."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from airflow_eos.errors import ConfigurationError, Remedy, StoreError

_ON, _OFF = ("ON", "1"), {"OFF", "0"}
FAILOVER = Remedy(change="name the primary, or wait until the failover is over", start=True)
"""What to do where a server takes no writes now: a later start may find the primary."""
PINNED = (
    "SET SESSION time_zone = '+00:00', completion_type = 'NO_CHAIN', "  # else COMMIT begins another
    "foreign_key_checks = 1, unique_checks = 1, sql_safe_updates = 0, sql_big_selects = 1, "
    "sql_select_limit = 18446744073709551615, group_concat_max_len = 1048576, "
    "wait_timeout = 28800, "
    # Settings that only MySQL has, and that only MariaDB has.
    "/*!80000 max_execution_time = 0, information_schema_stats_expiry = 0, */ "
    "/*M! max_statement_time = 0, idle_transaction_timeout = 0, "
    "idle_write_transaction_timeout = 0, */ "
    "innodb_lock_wait_timeout = {locks_s}, lock_wait_timeout = {locks_s}, sql_mode = '{mode}'"
)
"""The settings of every MySQL session. A limit of its user or server is meant for people, and would
end the move of decided rows at every start, or let in rows that were tried by other rules."""
TRANSACTIONS = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ WRITE"
ABOUT = """
SHOW GLOBAL VARIABLES WHERE Variable_name IN ('read_only', 'innodb_read_only',
'innodb_snapshot_isolation',
'innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog',
'wsrep_on', 'group_replication_group_name', 'group_replication_single_primary_mode',
'group_replication_consistency')
"""


def of_innodb(settings: Mapping[str, str]) -> list[str]:
    """Return the statements for a session, besides ``PINNED``, of settings that few servers have.

    MariaDB 11.6.2 and newer refuse to lock a row that is newer than the transaction's view (error
    1020), as of a foreign key's parent that others change. Our statements look at what stands.

    Args:
        settings: as for :func:`require_witness`.
    """
    if "innodb_snapshot_isolation" not in settings:
        return []
    return ["SET SESSION innodb_snapshot_isolation = OFF"]


def require_witness(settings: Mapping[str, str], address: str) -> None:
    """Refuse a MySQL server that may lose a commit, or lack one that another server has done.

    Args:
        settings: the settings of ``ABOUT`` that the server has, by name.
        address: the server's address, for errors.

    Raises:
        StoreError: it takes no writes now; after a failover it may soon, or another one does.
        ConfigurationError: what was found, and what to do.
    """
    # MariaDB 12 has NO_LOCK and NO_LOCK_NO_ADMIN, too; an Aurora reader has InnoDB alone so.
    if not {settings["read_only"], settings.get("innodb_read_only", "OFF")} <= _OFF:
        raise StoreError(
            f"{address} is read-only, a replica perhaps: it lags, so no outcome can be read from "
            "it. Name the primary.",
            FAILOVER,
        )
    flush = settings["innodb_flush_log_at_trx_commit"]
    if flush != "1":
        raise ConfigurationError(
            f"{address} has innodb_flush_log_at_trx_commit = {flush}: a power cut takes away what "
            "was committed. Set it to 1 (the default)."
        )
    synced = settings.get("sync_binlog", "1")
    if settings.get("log_bin") in _ON and synced != "1":  # InnoDB then follows the binary log
        raise ConfigurationError(
            f"{address} has log_bin = ON and sync_binlog = {synced}: a power cut takes away what "
            "was committed and is not in the binary log on disk. Set it to 1 (MySQL's default)."
        )
    if found := _of_several(settings):
        raise ConfigurationError(
            f"{address} has {found}: what another server of the cluster has committed may be "
            "applied here later, so no outcome can be read from what is not there. Expected one "
            "server that takes writes."
        )


def _of_several(settings: Mapping[str, str]) -> str | None:
    """Return the setting that lets other servers commit, too; None where no setting does."""
    if settings.get("wsrep_on") in _ON:
        return "wsrep_on = ON (Galera)"
    if settings.get("group_replication_group_name"):
        if settings.get("group_replication_single_primary_mode") not in _ON:
            return "group_replication_single_primary_mode = OFF"
        # A new primary answers before it has applied what the old one had committed.
        if settings.get("group_replication_consistency") == "EVENTUAL":
            return "group_replication_consistency = EVENTUAL (BEFORE_ON_PRIMARY_FAILOVER will do)"
    return None


# --- mysql errors ---------------------------------------------------------------------------------


_KEY = re.compile(r"for key '(?:[^'.]+\.)?([^']+)'$")  # MySQL 8.0.19 and newer name its table
_QUOTED = re.compile(r"(['\"`]).*\1", re.DOTALL)
_OF_ROWS = ("IntegrityError", "DataError")
# Errors of a trigger, of checks (MySQL's and MariaDB's), of values that a column cannot hold, of a
# row without a partition, of a generated column (MySQL's and MariaDB's); then of a number beyond
# the last, and of a row too large.
ROW_ERRORS = {1644, 1645, 1442, 3819, 4025, 1292, 1364, 1365, 1366, 1411, 1690, 3140, 1526, 3105}
_TOO_LARGE = 1118  # its text tells the limit, and no value
ROW_ERRORS |= {1906, 1467, _TOO_LARGE}


DENIED = {1044, 1142, 1227, 1290}
"""Errors of DDL that is not allowed: a right, or an option of the server."""


def number_of(error: Any) -> int:
    """Return the error number of the server or the client library; 0 where there is none."""
    first = error.args[0] if error.args else 0
    return first if isinstance(first, int) else 0


def reason(error: Any) -> str:
    """Return the name, number and text of PyMySQL's error, without values of rows.

    The text of an error of rows holds values, so of it there is the unique key that a second row
    has; of other texts what is between their first and last quote is left out.
    """
    kind, text = type(error).__name__, str(error.args[-1]) if len(error.args) > 1 else ""
    said = f"{kind} {number_of(error)}"
    if kind in _OF_ROWS or number_of(error) in ROW_ERRORS - {_TOO_LARGE}:
        key = _KEY.search(text)
        return f"{said}, a second row for the unique key {key[1]!r}" if key else said
    return f"{said}: {_QUOTED.sub('…', text).rstrip('.')}" if text else said


# --- mysql url ------------------------------------------------------------------------------------
# The URL by which a user names a MySQL or MariaDB database.


def parts_of(url: str) -> dict[str, Any]:
    """Return the parts of ``mysql://user:password@host:3306/database`` as PyMySQL's keywords.

    Raises:
        ConfigurationError: it cannot be read, or has more; it is not quoted, since it may hold a
            password.
    """
    try:
        parts = urlsplit(url)
        database = parts.path.strip("/")
        # By the rules of URLs a password ends at a slash: what follows would be shown as a name.
        if parts.scheme != "mysql" or not parts.hostname or not database or "@" in database:
            raise ValueError  # noqa: TRY301 - one message for all that is wrong
        port = parts.port or 3306
    except ValueError:
        raise ConfigurationError(
            "The URL of MySQL cannot be read: expected mysql://user:password@host:3306/database, "
            "each part in percent-encoding."
        ) from None  # the cause may quote the password
    if parts.query or parts.fragment:
        raise ConfigurationError(
            "The URL of MySQL has settings behind its database ('?' or '#'), and none is known "
            "here: what they ask for, such as TLS, would not be done. Expected "
            "mysql://user:password@host:3306/database alone."
        )
    return {
        "host": parts.hostname,
        "port": port,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": unquote(database),
    }


# --- libpq ----------------------------------------------------------------------------------------
# Settings of a PostgreSQL connection: when its host counts as gone, and its session's limits.


_PINNED = """
SELECT set_config(name, ours, {is_local}) FROM (VALUES
  ('statement_timeout', '0'), ('transaction_timeout', '0'),
  ('idle_in_transaction_session_timeout', '0'), ('idle_session_timeout', '0'),
  ('default_transaction_read_only', 'off'), ('default_transaction_deferrable', 'off'),
  ('default_transaction_isolation', 'read committed'), ('synchronous_commit', 'on')
) AS pinned (name, ours) WHERE current_setting(name, true) NOT IN (ours, 'remote_apply')
"""
"""The settings of a PostgreSQL session. A limit of its role or database is meant for people, and
would end the move of decided rows at every start. Nor may a role answer before a commit is
durable. A setting that the server does not know yet is left out."""
OF_SESSION, OF_TRANSACTION = (_PINNED.format(is_local=each) for each in ("false", "true"))
"""The settings for a session, and for each transaction: a pooler may change the connection."""


_OF_SCHEMAS = 150_000  # the first server with publications of all tables in a schema


def published(connection: Any, schema: str) -> str | None:
    """Name the publications that a new table of ``schema`` joins by itself; None: there is none."""
    found = "SELECT pubname FROM pg_publication WHERE puballtables"
    if connection.info.server_version >= _OF_SCHEMAS:
        found += """ UNION SELECT pubname FROM pg_publication AS p
        JOIN pg_publication_namespace ON pnpubid = p.oid
        JOIN pg_namespace AS n ON n.oid = pnnspid WHERE nspname = %(schema)s"""
    asked = f"SELECT string_agg(pubname, ', ') FROM ({found}) AS named"  # noqa: S608 - ours
    [(names,)] = connection.execute(asked, {"schema": schema}).fetchall()
    return None if names is None else str(names)


def attentive(dsn: str, timeout_s: float) -> dict[str, Any]:
    """Return timeouts as keywords for ``psycopg.connect``, but for those that ``dsn`` has itself.

    Args:
        dsn: a connection string of libpq.
        timeout_s: seconds to connect, and after which a silent host is probed, and given up.

    Raises:
        psycopg.ProgrammingError: ``dsn`` cannot be read.
    """
    within = max(2, int(timeout_s))
    silent: dict[str, Any] = {"tcp_user_timeout": within * 1000, "keepalives_idle": within}
    given = keywords_of(dsn)
    told = {name: value for name, value in silent.items() if name not in given}
    return {"connect_timeout": within, **told}


def keywords_of(dsn: str) -> dict[str, Any]:
    """Return the keywords of a connection string of libpq, which ends a password at any @ or slash.

    Raises:
        psycopg.ProgrammingError: it cannot be read, or the rest of a password would be shown as the
            name of a host or a database.
    """
    import psycopg
    from psycopg import conninfo

    found: dict[str, Any] = conninfo.conninfo_to_dict(dsn)
    shown = [str(found.get(name, "")) for name in ("host", "port", "dbname")]
    is_url = dsn.startswith(("postgresql://", "postgres://"))
    if is_url and any("@" in each and each in dsn for each in shown):
        raise psycopg.ProgrammingError("an @ in a name, which is to be written %40")
    return found


# --- reach ----------------------------------------------------------------------------------------
# The URL or DSN of a target, also from the parts that an Airflow connection has; pure.


_MYSQL = frozenset({"host", "port", "user", "password", "database"})


def as_text(system: str, reach: object) -> str | None:
    """Return the URL or DSN that ``reach`` gives, as text or by its parts; None where it is empty.

    Raises:
        ConfigurationError: it has parts that the system does not know.
    """
    if isinstance(reach, str):
        return reach or None
    if not isinstance(reach, Mapping) or not reach:
        return None
    parts = {str(name): str(value) for name, value in reach.items()}
    if system == "postgres":
        return " ".join(f"{name}={_libpq(value)}" for name, value in parts.items())
    if system == "mysql":
        return _mysql(parts)
    if unknown := sorted(parts.keys() - {"url"}):
        raise ConfigurationError(
            f"{system} is told {', '.join(unknown)}, which is not known here: expected url alone."
        )
    return parts.get("url")


def _libpq(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _mysql(parts: Mapping[str, str]) -> str:
    unknown = sorted(parts.keys() - _MYSQL)
    if unknown:
        raise ConfigurationError(
            f"MySQL is told {', '.join(unknown)}, which is not known here: expected "
            f"{', '.join(sorted(_MYSQL))}."
        )
    login = quote(parts.get("user", ""), safe="")
    secret = quote(parts.get("password", ""), safe="")
    where = f"{parts.get('host', 'localhost')}:{parts.get('port', '3306')}"
    return f"mysql://{login}:{secret}@{where}/{quote(parts.get('database', ''), safe='')}"
