"""What a server must be, so that a witness that is not there stays away."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_eos.errors import ConfigurationError

_ON = ("ON", "1")
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
