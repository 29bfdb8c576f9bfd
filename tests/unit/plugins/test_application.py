"""The page in Airflow's API server, where Airflow does not say who asks."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import HTTPException, Request
from fastapi.testclient import TestClient

from airflow_eos.plugins import application


async def of_the_header_alone() -> Any:
    """As Airflow 3.1.0 looks for a user."""
    raise HTTPException(401, "Not authenticated")


async def of_a_cookie_too(request: Request) -> Any:
    """As later ones do."""
    assert request
    raise HTTPException(401, "Not authenticated")


class Login:
    def get_url_login(self, *, next_url: str) -> str:
        return f"/auth/login?next={next_url}"


@pytest.mark.parametrize(
    ("get_user", "status", "says"),
    [(of_the_header_alone, 401, "needs Airflow"), (of_a_cookie_too, 307, "")],
)
def test_who_cannot_be_known_is_told_so_and_not_sent_round_in_circles(
    monkeypatch, get_user, status, says
):
    monkeypatch.setenv("AIRFLOW__API__SECRET_KEY", "a secret of this test")
    monkeypatch.setattr(application, "get_user", get_user)
    monkeypatch.setattr(application, "get_auth_manager", Login)
    client = TestClient(application.application(), follow_redirects=False)
    answer = client.get("/", headers={"accept": "text/html"})
    assert answer.status_code == status
    assert says in answer.text
