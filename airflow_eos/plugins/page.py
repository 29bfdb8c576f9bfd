"""The page as an Airflow plugin: a route of the API server, and a view in the navigation.

Every component of Airflow loads its plugins, and only the API server shows pages: so the
application is built with the first request.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio.to_thread
from airflow.plugins_manager import AirflowPlugin

from airflow_eos import hooks as _hooks  # noqa: F401 - an old Airflow ends here

PREFIX = "/eos"


class BuiltWhenAsked:
    """The page's application, built with the first request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._app: Callable[..., Awaitable[None]] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request (ASGI)."""
        if self._app is None:
            self._app = await anyio.to_thread.run_sync(self._built)
        await self._app(scope, receive, send)

    def _built(self) -> Callable[..., Awaitable[None]]:
        from airflow_eos.plugins.application import application

        with self._lock:
            return self._app or application()


class EosPagePlugin(AirflowPlugin):
    """Shows the pipelines that a user may see under *Browse*."""

    name = "airflow_eos"
    fastapi_apps = [  # noqa: RUF012 - as Airflow has it
        {"app": BuiltWhenAsked(), "url_prefix": PREFIX, "name": "airflow_eos pipelines"}
    ]
    external_views = [  # noqa: RUF012
        {
            "name": "Pipelines (EOS)",
            # Relative to Airflow's own address, which may have a path of its own.
            "href": f"{PREFIX.lstrip('/')}/",
            "url_route": "eos-pipelines",
            "destination": "nav",
            "category": "browse",
        }
    ]
