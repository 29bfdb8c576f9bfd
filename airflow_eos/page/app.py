"""The page as a web application: every route reads, and whoever mounts it says who may see what.

Nothing comes from elsewhere: the page, its script and its style are files of this package, and the
policy in the headers forbids everything else.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from fastapi import Depends, FastAPI, HTTPException, Response
from starlette.middleware.trustedhost import TrustedHostMiddleware

from airflow_eos.page import views
from airflow_eos.page.board import Board
from airflow_eos.page.views import PipelineEntry, Reach

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_STATIC = files("airflow_eos.page") / "static"
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
    """Who shows the page. ``user`` is what the dependency given to :func:`create_app` returns."""

    def pipelines(self, user: Any) -> tuple[Sequence[PipelineEntry], Sequence[str]]:
        """What this user may see, and remarks on what cannot be shown to anybody."""
        ...

    def actions(
        self, user: Any, listed: PipelineEntry, detail: views.DetailView
    ) -> Sequence[views.ButtonView]:
        """The buttons of one pipeline; none where the page only reads."""
        ...


def create_app(
    host: Host, board: Board, *, user: Callable[..., Any], read_only: bool = True
) -> FastAPI:
    """The application, without a route that changes anything.

    Args:
        host: says which pipelines there are.
        board: looks at them.
        user: a FastAPI dependency of every route: the user, or an HTTPException.
        read_only: whether the page says that it has no buttons.
    """
    app = FastAPI(
        title="airflow_eos", openapi_url=None, docs_url=None, redoc_url=None
    )  # no description for whoever is not logged in
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
        return answer(msgspec.structs.replace(detail, actions=buttons))

    @app.get("/api/pipelines/{id}/plan")
    def plan(id: str, who: Any = asking) -> Response:  # noqa: A002
        listed = find(host, who, id)
        made = board.plan(listed)
        if made is None:
            raise late(listed)
        return answer(made)

    return app


def find(host: Host, who: Any, id_: str) -> PipelineEntry:
    """The pipeline of that id, if the user may see it; else it does not exist for him."""
    for each in host.pipelines(who)[0]:
        if each.id == id_:
            return each
    raise HTTPException(404, "No such pipeline, or you may not see its DAG.")


def late(listed: PipelineEntry) -> HTTPException:
    """Nobody has answered in time; whoever asks again may have the answer."""
    said = f"{listed.location} has not answered yet. Is its store reachable? Asking goes on."
    return HTTPException(503, said, headers={"Retry-After": AGAIN_S})


def answer(value: msgspec.Struct) -> Response:
    """As JSON, with the moment of answering, for clocks that differ."""
    headers = HEADERS | {"X-EOS-Now": str(_now_ms())}
    return Response(msgspec.json.encode(value), media_type="application/json", headers=headers)


def _file(name: str, media_type: str) -> Response:
    return Response(_STATIC.joinpath(name).read_bytes(), media_type=media_type, headers=HEADERS)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


HOSTS = ("127.0.0.1", "localhost", "[::1]")
"""Any other name would be a page of somebody else that has its name lead here (DNS rebinding)."""

NAME_CLUSTER = (
    "Whoever started the page can end it and start it again with the brokers: airflow-eos ui "
    "CHECKPOINT… -b host:port, or --kafka-config FILE where they ask for a login."
)


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Checkpoints by their locations, which nobody may do anything about."""

    listed: tuple[PipelineEntry, ...]

    def pipelines(self, user: Any) -> tuple[Sequence[PipelineEntry], Sequence[str]]:  # noqa: ARG002
        """All of them: whoever is on this machine could read them as well."""
        return self.listed, ()

    def actions(
        self,
        user: Any,  # noqa: ARG002
        listed: PipelineEntry,  # noqa: ARG002
        detail: views.DetailView,  # noqa: ARG002
    ) -> Sequence[views.ButtonView]:
        """None."""
        return ()


def standalone(locations: Sequence[str], reach: Reach) -> FastAPI:
    """The application for these checkpoints."""
    listed = tuple(
        PipelineEntry(
            name=_name(each),
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
    """The last path component, or its parent's name if that is ``checkpoint``."""
    parts = [part for part in PurePosixPath(location).parts if part != "/"]
    generic = len(parts) > 1 and parts[-1].lower() in ("checkpoint", "checkpoints", "ckpt")
    return parts[-2 if generic else -1] if parts else location
