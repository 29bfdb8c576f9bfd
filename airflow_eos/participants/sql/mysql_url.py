"""How a database of MySQL or MariaDB is named: one URL, as a user writes it."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

from airflow_eos.errors import ConfigurationError


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
