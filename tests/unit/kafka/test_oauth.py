"""Client credentials against a token endpoint on the loopback interface."""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

import pytest

from airflow_eos.errors import ConfigurationError, KafkaError, KafkaUnavailableError
from airflow_eos.kafka.client.settings import token_provider


class Endpoint(BaseHTTPRequestHandler):
    asked: ClassVar[list[Any]] = []
    url: ClassVar[str] = ""
    moved_to: ClassVar[str] = ""
    status = 200
    lifetime: ClassVar[float] = 100
    padding = ""

    def do_POST(self):
        form = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        self.asked.append((dict(urllib.parse.parse_qsl(form)), self.headers["Authorization"]))
        self.send_response(self.status)
        if self.moved_to:
            self.send_header("Location", self.moved_to)
        self.end_headers()
        self.wfile.write(
            json.dumps(
                {
                    "access_token": f"token-{len(self.asked)}",
                    "expires_in": self.lifetime,
                    "padding": self.padding,
                }
            ).encode()
        )

    do_GET = do_POST  # noqa: N815 - http.server's name: a redirected POST comes as a GET

    def log_message(self, *args):
        pass


def serving():
    class handler(Endpoint):  # noqa: N801 - its own list and url for each test
        asked: ClassVar[list[Any]] = []

    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    handler.url = f"http://127.0.0.1:{server.server_port}/token"
    yield handler
    server.shutdown()
    server.server_close()
    thread.join(120)


endpoint = pytest.fixture(serving, name="endpoint")
elsewhere = pytest.fixture(serving, name="elsewhere")


CLIENT = {
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "etl",
    "sasl.oauthbearer.client.secret": "hidden",
}


def provider(endpoint, **more):
    return token_provider(CLIENT | {"sasl.oauthbearer.token.endpoint.url": endpoint.url} | more)


def test_a_token_is_asked_for_once_while_it_lives(endpoint):
    tokens = provider(endpoint, **{"sasl.oauthbearer.scope": "kafka"})
    assert [tokens.token(), tokens.token()] == ["token-1", "token-1"]
    form, authorization = endpoint.asked[0]
    assert form == {"grant_type": "client_credentials", "scope": "kafka"}
    assert base64.b64decode(authorization.removeprefix("Basic ")).decode() == "etl:hidden"


def test_a_token_is_renewed_before_it_expires(endpoint):
    endpoint.lifetime = 0
    tokens = provider(endpoint)
    assert [tokens.token(), tokens.token()] == ["token-1", "token-2"]


def test_a_refusal_shows_no_secret(endpoint):
    endpoint.status = 401
    with pytest.raises(KafkaError, match="401") as refused:
        provider(endpoint).token()
    assert "hidden" not in str(refused.value)


def test_an_answer_without_an_end_is_no_token(endpoint):
    endpoint.padding = "x" * (1 << 20)
    with pytest.raises(KafkaUnavailableError, match="No token from"):
        provider(endpoint).token()


@pytest.mark.parametrize("lifetime", [float("inf"), float("nan")])
def test_a_token_for_ever_is_none(endpoint, lifetime):
    endpoint.lifetime = lifetime
    with pytest.raises(KafkaUnavailableError, match="No token from"):
        provider(endpoint).token()


@pytest.mark.parametrize(
    "url",
    [
        "https://etl:hidden@127.0.0.1/token",
        "http://etl:hidden@elsewhere.example/token",
        "ftp://etl:hidden@127.0.0.1/token",
        "https://etl:hidden@[127.0.0.1/token",
        "https://127.0.0.1:hidden/token",
    ],
)
def test_a_login_in_the_endpoints_url_is_refused_and_never_shown(url):
    with pytest.raises(ConfigurationError) as refused:
        token_provider(CLIENT | {"sasl.oauthbearer.token.endpoint.url": url})
    assert "hidden" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_what_a_query_says_is_not_shown(endpoint):
    endpoint.status = 401
    endpoint.url += "?key=hidden"
    with pytest.raises(KafkaError, match="No token from") as refused:
        provider(endpoint).token()
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    ("status", "passes"), [(400, False), (401, False), (429, True), (503, True)]
)
def test_what_an_endpoint_answers_in_passing_is_asked_again(endpoint, status, passes):
    endpoint.status = status
    with pytest.raises(KafkaError, match=str(status)) as refused:
        provider(endpoint).token()
    assert isinstance(refused.value, KafkaUnavailableError) is passes


def test_extensions_are_passed_on(endpoint):
    tokens = provider(endpoint, **{"sasl.oauthbearer.extensions": "logicalCluster=lkc-1, pool=p"})
    assert tokens.extensions() == {"logicalCluster": "lkc-1", "pool": "p"}


def test_the_callers_own_function_gives_the_token():
    tokens = token_provider(
        {
            "oauth_cb": lambda argument: (f"mine-{argument}", time.time() + 60),
            "sasl.oauthbearer.config": "scope",
        }
    )
    assert tokens.token() == "mine-scope"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_does_not_carry_the_client_secret_to_another_host(endpoint, elsewhere, status):
    endpoint.status = status
    endpoint.moved_to = elsewhere.url + "?code=hidden"
    with pytest.raises(
        KafkaError, match=f"{status}, a redirect to 127.0.0.1, which is not"
    ) as told:
        provider(endpoint).token()
    assert elsewhere.asked == []
    assert "hidden" not in str(told.value)
    assert not isinstance(told.value, KafkaUnavailableError), "asking again would not help"


UNENCRYPTED = "http://login.example/token"


def test_a_secret_is_not_sent_unencrypted(monkeypatch):
    monkeypatch.delenv("AIRFLOW_EOS_HTTP_TOKEN_HOSTS", raising=False)
    with pytest.raises(ConfigurationError, match=r"unencrypted to login\.example.*https") as told:
        token_provider(CLIENT | {"sasl.oauthbearer.token.endpoint.url": UNENCRYPTED})
    assert "hidden" not in str(told.value)
    assert "AIRFLOW_EOS_HTTP_TOKEN_HOSTS=login.example" in str(told.value)


def test_a_host_that_was_allowed_may_be_asked_without_tls(monkeypatch):
    monkeypatch.setenv("AIRFLOW_EOS_HTTP_TOKEN_HOSTS", "other.example,login.example")
    token_provider(CLIENT | {"sasl.oauthbearer.token.endpoint.url": UNENCRYPTED})


@pytest.mark.parametrize("host", ["127.0.0.1:80", "[::1]:80", "localhost"])
def test_this_machine_itself_may_be_asked_without_tls(host):
    token_provider(CLIENT | {"sasl.oauthbearer.token.endpoint.url": f"http://{host}/token"})


@pytest.mark.parametrize("host", ["127.0.0.1.example", "localhost.example", "localhost@example"])
def test_a_host_that_only_looks_like_this_machine_may_not(host):
    with pytest.raises(ConfigurationError, match="unencrypted"):
        token_provider(CLIENT | {"sasl.oauthbearer.token.endpoint.url": f"http://{host}/token"})
