"""The page inside Airflow's API server: its users, its permissions, and the three buttons.

Airflow mounts what a plugin brings without asking who comes: each route here asks for the user
as Airflow's own routes do, and for what he may do with the pipeline's DAG.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import get_user
from airflow.configuration import conf
from airflow.models.dag import DagModel
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import PlainTextResponse, RedirectResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from airflow_eos.errors import EosError
from airflow_eos.page import views
from airflow_eos.page.app import answer, create_app, find, late
from airflow_eos.page.board import Board
from airflow_eos.page.listed import Listed
from airflow_eos.plugins.acting import act
from airflow_eos.plugins.buttons import NAMES, Allowed, asked_of, buttons
from airflow_eos.plugins.origin import HEADER, Tokens, require_own
from airflow_eos.plugins.reading import Dags, paused, pipelines, stall_after_ms

TOO_OLD = (
    "In a browser this page needs Airflow 3.1.1 or later: this one does not say who is logged in, "
    "but to its own pages. `airflow-eos ui` shows the same, to read, beside any Airflow."
)


@dataclass(frozen=True)
class Airflow:
    """Airflow as the page asks it."""

    tokens: Tokens
    dags: Dags = field(default_factory=Dags)

    def pipelines(self, user: Any) -> tuple[Sequence[Listed], Sequence[str]]:
        """Those of DAGs that the user may read."""
        return pipelines(self.dags.said(), _dags(user, "GET"))

    def actions(self, user: Any, listed: Listed, detail: views.Detail) -> tuple[views.Action, ...]:
        """The three buttons, as this user may press them now."""
        who = user.get_id()
        return buttons(
            listed,
            detail.row,
            _allowed(user, listed),
            lambda action: self.tokens.make(who, listed.id, asked_of(action, detail.row)),
        )


def application() -> FastAPI:
    """The page for Airflow's API server."""
    board = Board(stall_after_ms())
    host = Airflow(Tokens(conf.get_mandatory_value("api", "secret_key")))
    app = create_app(host, board, user=get_user, read_only=False)
    asking = Depends(get_user)
    reads_cookies = "request" in inspect.signature(get_user).parameters

    @app.post("/api/pipelines/{id}/{action}")
    def press(
        request: Request,
        id: str,  # noqa: A002 - the name in the address
        action: str,
        user: Any = asking,
    ) -> Response:
        require_own(request.headers, _own(request))
        listed = find(host, user, id)
        if action not in NAMES:
            raise HTTPException(404, f"There is no button {action!r}.")
        board.forget(listed)  # what is decided on is of now
        detail = board.detail(listed)
        if detail is None:
            raise late(listed)
        pressed = next(each for each in host.actions(user, listed, detail) if each.name == action)
        asked = asked_of(action, detail.row)
        nonce = host.tokens.nonce(request.headers[HEADER], user.get_id(), listed.id, asked)
        if pressed.token is None:
            may = _allowed(user, listed)
            raise HTTPException(409 if _may_press(may, listed, action) else 403, pressed.not_now)
        try:
            said = act(action, listed, user.get_name(), nonce)
        except EosError as error:
            raise HTTPException(409, str(error)) from error
        board.forget(listed)
        return answer(views.Done(said))

    @app.exception_handler(StarletteHTTPException)
    async def refused(request: Request, error: StarletteHTTPException) -> Response:
        """A person who is not logged in is led to the login; programs are told 401."""
        wants_page = "text/html" in request.headers.get("accept", "")
        if error.status_code == 401 and request.method == "GET" and wants_page:
            if not reads_cookies:  # the login would lead back to here, for ever
                return PlainTextResponse(TOO_OLD, error.status_code)
            return RedirectResponse(get_auth_manager().get_url_login(next_url=str(request.url)))
        return await http_exception_handler(request, error)

    return app


def _dags(user: Any, method: Any) -> set[str]:
    return get_auth_manager().get_authorized_dag_ids(user=user, method=method)


def _allowed(user: Any, listed: Listed) -> Allowed:
    """To edit is what Airflow asks of who pauses a DAG; to start one, what it asks besides."""
    dag_ids = {each for each in (listed.dag_id, listed.recovery_dag_id) if each is not None}
    editable = _dags(user, "PUT")
    return Allowed(
        edit=listed.dag_id in editable,
        run=frozenset(each for each in dag_ids & editable if _may_run(user, each)),
        paused=paused(dag_ids),
    )


def _may_run(user: Any, dag_id: str) -> bool:
    team = DagModel.get_team_name(dag_id) if hasattr(DagModel, "get_team_name") else None
    details = DagDetails(id=dag_id, team_name=team) if team else DagDetails(id=dag_id)
    return get_auth_manager().is_authorized_dag(
        method="POST", access_entity=DagAccessEntity.RUN, details=details, user=user
    )


def _may_press(allowed: Allowed, listed: Listed, action: str) -> bool:
    if action == "drain":
        return allowed.edit
    dag_id = listed.dag_id if action == "resume" else listed.recovery_dag_id
    return dag_id is None or dag_id in allowed.run


def _own(request: Request) -> set[str]:
    """Names of this server: what the browser called it, and what it is configured to be called."""
    configured = urlsplit(conf.get("api", "base_url", fallback="")).netloc
    return {each for each in (request.headers.get("host", ""), configured) if each}
