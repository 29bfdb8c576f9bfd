"""How to get to the participants of a pipeline, from Airflow's own connections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from airflow_eos.errors import ConfigurationError
from airflow_eos.hooks.store import STORES, options_of

if TYPE_CHECKING:
    from airflow.sdk import Connection

_LIBPQ = {"host": "host", "port": "port", "user": "login", "password": "password"}


class ParticipantsHook(BaseHook):
    """Reads a connection for each participant; what is secret in it Airflow masks in every log.

    =============  ===============================================================================
    type           what the participant is told
    =============  ===============================================================================
    ``postgres``   libpq's parameters: host, port, user, password, dbname, and the extra's
    ``mysql``      host, port, user, password, database, and the extra's
    stores         ``storage_options``, as the checkpoint's (aws, google_cloud_platform, wasb)
    ``redis``      a URL: ``redis://…``, or ``rediss://…`` where the extra's ``ssl`` is set
    others         the extra, as it is
    =============  ===============================================================================

    Args:
        conn_ids: connection by the participant's name, or by its kind.
    """

    def __init__(self, conn_ids: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.conn_ids = dict(conn_ids or {})

    def reach(self) -> dict[str, Any]:
        """By name or kind, how to get there.

        Raises:
            ConfigurationError: a connection says nothing.
        """
        return {name: told(self.get_connection(each)) for name, each in self.conn_ids.items()}

    async def areach(self) -> dict[str, Any]:
        """Return :meth:`reach` inside a trigger, whose event loop may not be blocked."""
        return {
            name: told(await self.aget_connection(each)) for name, each in self.conn_ids.items()
        }

    def get_conn(self) -> dict[str, Any]:
        """Return :meth:`reach`: there is no long-lived client to hand out."""
        return self.reach()


def told(connection: Connection) -> Any:
    """What a participant needs of a connection.

    Raises:
        ConfigurationError: the connection has neither a host nor an extra.
    """
    if connection.conn_type in STORES:
        return {"storage_options": options_of(connection)}
    extra: dict[str, Any] = connection.extra_dejson
    if connection.conn_type == "redis":
        return _redis_url(connection, extra)
    if connection.conn_type in ("postgres", "mysql"):
        database = {"postgres": "dbname", "mysql": "database"}[connection.conn_type]
        given = {name: getattr(connection, ours) for name, ours in _LIBPQ.items()}
        given[database] = connection.schema
        extra = {**{name: value for name, value in given.items() if value}, **extra}
    if not extra:
        raise ConfigurationError(
            f"Connection {connection.conn_id!r} says nothing of how to reach a participant: "
            "expected a host, or a JSON object in its extra."
        )
    return extra


def _redis_url(connection: Connection, extra: Mapping[str, Any]) -> str:
    from urllib.parse import quote

    scheme = "rediss" if extra.get("ssl") else "redis"
    login, password = quote(connection.login or ""), quote(connection.password or "", safe="")
    secret = f"{login}:{password}@" if password else ""
    where = f"{connection.host or 'localhost'}:{connection.port or 6379}"
    return f"{scheme}://{secret}{where}/{extra.get('db', connection.schema or 0)}"
