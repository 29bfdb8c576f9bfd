"""How to reach a target, as text: also from the parts that an Airflow connection has; pure."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from airflow_eos.errors import ConfigurationError

_MYSQL = frozenset({"host", "port", "user", "password", "database"})


def as_text(system: str, how: object) -> str | None:
    """The URL or DSN that ``how`` says; None where it says nothing.

    Raises:
        ConfigurationError: it has parts that the system does not know.
    """
    if isinstance(how, str):
        return how or None
    if not isinstance(how, Mapping) or not how:
        return None
    parts = {str(name): str(value) for name, value in how.items()}
    if system == "postgres":
        return " ".join(f"{name}={_libpq(value)}" for name, value in parts.items())
    if system == "mysql":
        return _mysql(parts)
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
