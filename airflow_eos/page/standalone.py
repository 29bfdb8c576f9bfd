"""The page without Airflow: on this machine only, and without a button."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from starlette.middleware.trustedhost import TrustedHostMiddleware

from airflow_eos.page.app import create_app
from airflow_eos.page.board import Board
from airflow_eos.page.listed import Listed, Reach

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastapi import FastAPI

    from airflow_eos.page import views

HOSTS = ("127.0.0.1", "localhost", "[::1]")
"""Any other name would be a page of somebody else that has its name lead here (DNS rebinding)."""

NAME_CLUSTER = (
    "Whoever started the page can end it and start it again with the brokers: airflow-eos ui "
    "CHECKPOINT… -b host:port, or --kafka-config FILE where they ask for a login."
)


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Checkpoints by their locations, which nobody may do anything about."""

    listed: tuple[Listed, ...]

    def pipelines(self, user: Any) -> tuple[Sequence[Listed], Sequence[str]]:  # noqa: ARG002
        """All of them: whoever is on this machine could read them as well."""
        return self.listed, ()

    def actions(
        self,
        user: Any,  # noqa: ARG002
        listed: Listed,  # noqa: ARG002
        detail: views.Detail,  # noqa: ARG002
    ) -> Sequence[views.Action]:
        """None."""
        return ()


def standalone(locations: Sequence[str], reach: Reach) -> FastAPI:
    """The application for these checkpoints."""
    listed = tuple(
        Listed(
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
    """The end of the path; of one that is called ``checkpoint``, what it lies in."""
    parts = [part for part in PurePosixPath(location).parts if part != "/"]
    generic = len(parts) > 1 and parts[-1].lower() in ("checkpoint", "checkpoints", "ckpt")
    return parts[-2 if generic else -1] if parts else location
