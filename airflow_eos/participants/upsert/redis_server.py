"""What a Redis must be, so that it forgets nothing of what it has acknowledged; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_eos.errors import ConfigurationError


def refuse_replica(found: Mapping[str, Any], prefix: str) -> None:
    """Refuse what is no master of all keys (ConfigurationError): it lags, or lacks some."""
    if found.get("cluster_enabled") or found.get("role") != "master":
        what = "a cluster" if found.get("cluster_enabled") else f"a {found.get('role')}"
        raise ConfigurationError(
            f"This Redis is {what}: expected one master that holds all keys of {prefix}."
        )


def refuse_server(found: Mapping[str, Any], prefix: str) -> None:
    """Refuse a server that forgets by itself.

    Args:
        found: what it says of itself (``INFO``).
        prefix: of the keys, for people.

    Raises:
        ConfigurationError: what was found, and what to do.
    """
    refuse_replica(found, prefix)
    policy = found.get("maxmemory_policy")
    if policy != "noeviction":
        raise ConfigurationError(
            f"This Redis has maxmemory-policy {policy}: it would forget rows, and their "
            "versions, when its memory is full. Expected noeviction (redis.conf, or CONFIG SET "
            "maxmemory-policy noeviction)."
        )
    if not found.get("aof_enabled"):
        raise ConfigurationError(
            "This Redis has appendonly no: when it ends, it forgets all that it acknowledged "
            "since its last snapshot, and nothing delivers that again. Expected appendonly yes "
            "(redis.conf, or CONFIG SET appendonly yes), best with appendfsync always."
        )


def life_of(found: Mapping[str, Any]) -> str:
    """Another text for each start of a server, and for each replica that takes over."""
    return f"{found.get('run_id')} {found.get('master_replid')}"


def may_forget(fsync: str | None) -> str | None:
    """What a server with this ``appendfsync`` may still forget; None where nothing.

    Args:
        fsync: None where the server does not tell.
    """
    return {
        "always": None,
        "everysec": "the last second before a power cut",
        "no": "what the system had not written to disk before a power cut",
    }.get(fsync or "", "what it had acknowledged and not synced before a power cut")
