"""How a connection to PostgreSQL notices that the other host is gone, of which no packet tells."""

from __future__ import annotations

from typing import Any


def attentive(dsn: str, timeout_s: float) -> dict[str, Any]:
    """Keywords for ``psycopg.connect``; what ``dsn`` says itself stands.

    Args:
        dsn: libpq's.
        timeout_s: seconds to connect, and after which a silent host is asked, and given up.

    Raises:
        psycopg.ProgrammingError: it cannot be read.
    """
    from psycopg import conninfo

    within = max(2, int(timeout_s))
    silent: dict[str, Any] = {"tcp_user_timeout": within * 1000, "keepalives_idle": within}
    given = conninfo.conninfo_to_dict(dsn)
    told = {name: value for name, value in silent.items() if name not in given}
    return {"connect_timeout": within, **told}
