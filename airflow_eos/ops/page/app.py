"""The page's web application: every route only reads, and its :class:`Host` says who may see what.

The browser loads nothing from other sites: the page, its script and its style are files of this
package, and the content security policy in the headers forbids everything else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Any, Protocol

import msgspec
from fastapi import Depends, FastAPI, HTTPException, Response
from starlette.middleware.trustedhost import TrustedHostMiddleware

from airflow_eos.core.checkpoint.locations import printable
from airflow_eos.ops.page import views
from airflow_eos.ops.page.board import Board
from airflow_eos.ops.page.views import PipelineEntry, Reach

_STATIC = files("airflow_eos.ops.page") / "static"
_TYPES = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "list.js": "text/javascript",
    "detail.js": "text/javascript",
    "charts.js": "text/javascript",
    "words.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
AGAIN_S = "2"


class Host(Protocol):
    """The server that shows the page. ``user`` is what :func:`create_app`'s dependency returns."""

    def pipelines(self, user: Any) -> tuple[Sequence[PipelineEntry], Sequence[str]]:
        """Return the pipelines that this user may see, and remarks on what cannot be shown."""
        ...

    def actions(
        self, user: Any, listed: PipelineEntry, detail: views.DetailView
    ) -> Sequence[views.ButtonView]:
        """Return the buttons of one pipeline; none where the page only reads."""
        ...

    def around(self, listed: PipelineEntry, detail: views.DetailView) -> views.Around:
        """Return the links of one pipeline, and which task supervises it."""
        ...


def create_app(
    host: Host, board: Board, *, user: Callable[..., Any], read_only: bool = True
) -> FastAPI:
    """Create the application, without a route that changes anything.

    Args:
        user: a FastAPI dependency of every route: returns the user, or raises an HTTPException.
        read_only: whether the page says that it has no buttons.
    """
    app = FastAPI(
        title="airflow_eos", openapi_url=None, docs_url=None, redoc_url=None
    )  # no API description for a client that is not logged in
    asking = Depends(user)

    @app.get("/")
    def index(who: Any = asking) -> Response:  # noqa: ARG001 - asked for, so that nobody else comes in
        return _file("index.html", "text/html")

    @app.get("/static/{name}")
    def static(name: str, who: Any = asking) -> Response:  # noqa: ARG001
        if name not in _TYPES:
            raise HTTPException(404, f"{name} is no file of the page")
        return _file(name, _TYPES[name])

    @app.get("/api/pipelines")
    def pipelines(who: Any = asking) -> Response:
        listed, remarks = host.pipelines(who)
        rows, pending = board.rows(listed)
        return answer(
            views.BoardView(
                now_ms=_now_ms(),
                read_only=read_only,
                rows=rows,
                pending=pending,
                remarks=tuple(remarks),
            )
        )

    @app.get("/api/pipelines/{id}")
    def pipeline(id: str, who: Any = asking) -> Response:  # noqa: A002 - the name in the address
        listed = find(host, who, id)
        detail = board.detail(listed)
        if detail is None:
            raise late(listed)
        buttons = tuple(host.actions(who, listed, detail))
        around = host.around(listed, detail)
        return answer(msgspec.structs.replace(detail, actions=buttons, around=around))

    @app.get("/api/pipelines/{id}/plan")
    def plan(id: str, who: Any = asking) -> Response:  # noqa: A002
        listed = find(host, who, id)
        made = board.plan(listed)
        if made is None:
            raise late(listed)
        return answer(made)

    return app


def find(host: Host, who: Any, id_: str) -> PipelineEntry:
    """Return the pipeline with that id; raise a 404 also where the user may not see it."""
    for each in host.pipelines(who)[0]:
        if each.id == id_:
            return each
    raise HTTPException(404, "No such pipeline, or you may not see its DAG.")


def late(listed: PipelineEntry) -> HTTPException:
    """Return the 503 for a store that has not answered in time; a later request may be answered."""
    said = f"{listed.shown} has not answered yet. Is its store reachable? Asking goes on."
    return HTTPException(503, said, headers={"Retry-After": AGAIN_S})


def answer(value: msgspec.Struct) -> Response:
    """Return the value as JSON, with the server's time in a header, as the browser's may differ."""
    headers = HEADERS | {"X-EOS-Now": str(_now_ms())}
    return Response(msgspec.json.encode(value), media_type="application/json", headers=headers)


def _file(name: str, media_type: str) -> Response:
    return Response(_STATIC.joinpath(name).read_bytes(), media_type=media_type, headers=HEADERS)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


HOSTS = ("127.0.0.1", "localhost", "[::1]")
"""Host names that are served: any other is a foreign site whose name leads here (DNS rebinding)."""

NAME_CLUSTER = (
    "Whoever started the page can end it and start it again with the brokers: airflow-eos ui "
    "CHECKPOINT… -b host:port, or --kafka-config FILE where they ask for a login."
)


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The host of ``airflow-eos ui``: checkpoints by their locations, without buttons."""

    listed: tuple[PipelineEntry, ...]

    def pipelines(self, user: Any) -> tuple[Sequence[PipelineEntry], Sequence[str]]:  # noqa: ARG002
        """Return all pipelines: a user of this machine could read their checkpoints as well."""
        return self.listed, ()

    def actions(
        self,
        user: Any,  # noqa: ARG002
        listed: PipelineEntry,  # noqa: ARG002
        detail: views.DetailView,  # noqa: ARG002
    ) -> Sequence[views.ButtonView]:
        """Return no buttons."""
        return ()

    def around(
        self,
        listed: PipelineEntry,  # noqa: ARG002
        detail: views.DetailView,  # noqa: ARG002
    ) -> views.Around:
        """Return nothing: no Airflow is asked."""
        return views.Around()


def standalone(locations: Sequence[str], reach: Reach) -> FastAPI:
    """Create the application that shows these checkpoints, without Airflow."""
    listed = tuple(
        PipelineEntry(
            name=_name(printable(each)),
            location=each,
            storage=lambda: reach.storage,
            reach=lambda: reach,
            name_cluster=NAME_CLUSTER,
        )
        for each in dict.fromkeys(locations)
    )
    app = create_app(Checkpoints(listed), Board(), user=lambda: None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(HOSTS))
    return app


def _name(location: str) -> str:
    """Return the last path component, or its parent's name where it is ``checkpoint``."""
    parts = [part for part in PurePosixPath(location).parts if part != "/"]
    generic = len(parts) > 1 and parts[-1].lower() in ("checkpoint", "checkpoints", "ckpt")
    return parts[-2 if generic else -1] if parts else location
