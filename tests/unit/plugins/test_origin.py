"""What changes something comes from the page, from who was asked, and a few minutes ago at most."""

from __future__ import annotations

import pytest
from fastapi import HTTPException

from airflow_eos.plugins import application as origin
from airflow_eos.plugins.application import HEADER, Tokens, require_own

OWN = {"airflow.example:8080"}
TOKENS = Tokens("a secret")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://airflow.example:8080", "sec-fetch-site": "same-origin"},
        {"origin": "http://airflow.example:8080"},
        {},  # a client that is no browser, and sends no cookie by itself
    ],
)
def test_the_page_itself_may_ask(headers):
    require_own(headers | {HEADER: "token"}, OWN)


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "https://evil.example"},
        {"origin": "https://airflow.example"},
        {"origin": "null"},
    ],
)
def test_another_site_may_not(headers):
    with pytest.raises(HTTPException) as refused:
        require_own(headers | {HEADER: "token"}, OWN)
    assert refused.value.status_code == 403


def test_a_form_that_cannot_set_a_header_may_not():
    with pytest.raises(HTTPException, match=HEADER):
        require_own({"origin": "http://airflow.example:8080"}, OWN)


def test_a_confirmation_has_a_nonce_of_its_own():
    made = [TOKENS.make("ann", "p", "drain") for _ in range(2)]
    nonces = {TOKENS.nonce(each, "ann", "p", "drain") for each in made}
    assert len(nonces) == 2
    assert TOKENS.nonce(made[0], "ann", "p", "drain") in nonces


@pytest.mark.parametrize(
    "asked", [("vic", "p", "drain"), ("ann", "q", "drain"), ("ann", "p", "resume")]
)
def test_it_is_of_one_user_one_pipeline_and_one_button(asked):
    token = TOKENS.make("ann", "p", "drain")
    with pytest.raises(HTTPException, match="another user, pipeline, button or driver"):
        TOKENS.nonce(token, *asked)


def test_one_that_is_not_signed_by_airflow_is_none():
    for token in ("", "x.y.z", Tokens("another secret").make("ann", "p", "drain")):
        with pytest.raises(HTTPException, match="no confirmation"):
            TOKENS.nonce(token, "ann", "p", "drain")


def test_one_that_is_too_old_is_asked_for_again(monkeypatch):
    token = TOKENS.make("ann", "p", "drain")
    monkeypatch.setattr(origin, "MAX_AGE_S", -1)
    with pytest.raises(HTTPException, match="too old"):
        TOKENS.nonce(token, "ann", "p", "drain")
