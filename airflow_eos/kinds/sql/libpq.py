"""What a connection to PostgreSQL is told: when its host is gone, and whose limits hold in it."""

from __future__ import annotations

from typing import Any

PINNED = """
SELECT set_config(name, ours, {is_local}) FROM (VALUES
  ('statement_timeout', '0'), ('transaction_timeout', '0'),
  ('idle_in_transaction_session_timeout', '0'), ('idle_session_timeout', '0'),
  ('default_transaction_read_only', 'off'), ('default_transaction_deferrable', 'off'),
  ('default_transaction_isolation', 'read committed'), ('synchronous_commit', 'on')
) AS pinned (name, ours) WHERE current_setting(name, true) NOT IN (ours, 'remote_apply')
"""
"""A session's limits are ours, and not its role's, nor its database's: each holds for people, and
would end the move of decided rows at every start again. Nor may a role answer before a commit is
durable. What a server does not know yet is left out."""
OF_SESSION, OF_TRANSACTION = (PINNED.format(is_local=each) for each in ("false", "true"))
"""Within each transaction again: a pooler may give it another connection than the session's."""


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
