"""What a server must be, so that a witness that is not there stays away; and whose limits hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from airflow_eos.errors import ConfigurationError

_ON = ("ON", "1")
PINNED = (
    "SET SESSION time_zone = '+00:00', completion_type = 'NO_CHAIN', "  # else COMMIT begins one
    "foreign_key_checks = 1, unique_checks = 1, sql_safe_updates = 0, sql_big_selects = 1, "
    "sql_select_limit = 18446744073709551615, group_concat_max_len = 1048576, "
    "wait_timeout = 28800, "
    # Those of MySQL alone, and of MariaDB alone.
    "/*!80000 max_execution_time = 0, information_schema_stats_expiry = 0, */ "
    "/*M! max_statement_time = 0, idle_transaction_timeout = 0, "
    "idle_write_transaction_timeout = 0, */ "
    "innodb_lock_wait_timeout = {locks_s}, lock_wait_timeout = {locks_s}, sql_mode = '{mode}'"
)
"""A session's limits are ours, and not its user's, nor its server's: each holds for people, and
would end the move of decided rows at every start again, or let in what was tried by other rules."""
TRANSACTIONS = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ WRITE"
ABOUT = """
SHOW GLOBAL VARIABLES WHERE Variable_name IN ('read_only', 'innodb_flush_log_at_trx_commit',
'wsrep_on', 'group_replication_group_name', 'group_replication_single_primary_mode',
'group_replication_consistency')
"""


def require_witness(settings: Mapping[str, str], place: str) -> None:
    """Refuse a server that may lose a commit, or lack one that another has done.

    Args:
        settings: those of ``ABOUT`` that the server has, by name.
        place: for people.

    Raises:
        ConfigurationError: what was found, and what to do.
    """
    if settings["read_only"] in _ON:
        raise ConfigurationError(
            f"{place} is read-only, a replica perhaps: it lags, so no outcome can be read from it. "
            "Name the primary."
        )
    flush = settings["innodb_flush_log_at_trx_commit"]
    if flush != "1":
        raise ConfigurationError(
            f"{place} has innodb_flush_log_at_trx_commit = {flush}: a power cut takes away what "
            "was committed. Set it to 1 (the default)."
        )
    if found := _of_several(settings):
        raise ConfigurationError(
            f"{place} has {found}: what another server of the cluster has committed may be applied "
            "here later, so no outcome can be read from what is not there. Expected one server "
            "that takes writes."
        )


def _of_several(settings: Mapping[str, str]) -> str | None:
    """The setting by which others commit, too."""
    if settings.get("wsrep_on") in _ON:
        return "wsrep_on = ON (Galera)"
    if settings.get("group_replication_group_name"):
        if settings.get("group_replication_single_primary_mode") not in _ON:
            return "group_replication_single_primary_mode = OFF"
        # A new primary answers before it has applied what the old one had committed.
        if settings.get("group_replication_consistency") == "EVENTUAL":
            return "group_replication_consistency = EVENTUAL (BEFORE_ON_PRIMARY_FAILOVER will do)"
    return None


# --- mysql_url ------------------------------------------------------------------------------------
# How a database of MySQL or MariaDB is named: one URL, as a user writes it.


def parts_of(url: str) -> dict[str, Any]:
    """``mysql://user:password@host:3306/database`` as PyMySQL's keywords.

    Raises:
        ConfigurationError: it cannot be read; it is not repeated, since it may hold a password.
    """
    try:
        parts = urlsplit(url)
        database = parts.path.strip("/")
        if parts.scheme != "mysql" or not parts.hostname or not database:
            raise ValueError  # noqa: TRY301 - one message for all that is wrong
        port = parts.port or 3306
    except ValueError:
        raise ConfigurationError(
            "The URL of MySQL cannot be read: expected mysql://user:password@host:3306/database."
        ) from None  # it may quote the password
    return {
        "host": parts.hostname,
        "port": port,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": unquote(database),
    }
