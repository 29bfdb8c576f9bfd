"""A registry that asks for a login: it is given, it goes nowhere else, and nothing prints it."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from airflow_eos.errors import ConfigurationError
from spark_apps.avro_windows import TOKEN, USER_INFO, read_schemas

SECRET = "s3cret"
BASIC = "Basic " + base64.b64encode(f"key:{SECRET}".encode()).decode()
ANSWERS: dict[str, Any] = {
    "/subjects/people-value/versions": [1],
    "/subjects/people-value/versions/1": {"id": 7, "schema": '"string"'},
    "/subjects/garbled/versions": "none",
}


class Registry(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        login = self.headers.get("Authorization")
        self.server.logins.append(login)  # type: ignore[attr-defined]
        found = ANSWERS.get(self.path)
        known = login in (BASIC, f"Bearer {SECRET}")
        self.send_response(302 if "moved" in self.path else 200 if known and found else 401)
        self.send_header("Location", f"{self.server.elsewhere}/x")  # type: ignore[attr-defined]
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def servers() -> Iterator[list[Any]]:
    made = [ThreadingHTTPServer(("127.0.0.1", 0), Registry) for _ in range(2)]
    for each in made:
        each.logins, each.elsewhere = [], f"http://127.0.0.1:{made[1].server_port}"  # type: ignore[attr-defined]
        threading.Thread(target=each.serve_forever, daemon=True).start()
    yield made
    for each in made:
        each.shutdown()
        each.server_close()


def test_it_logs_in_by_the_url_by_a_user_or_by_a_token(
    servers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = servers[0].server_port
    assert read_schemas(f"http://key:{SECRET}@127.0.0.1:{port}/", "people-value") == {7: '"string"'}
    monkeypatch.setenv(USER_INFO, f"key:{SECRET}")
    assert read_schemas(f"http://127.0.0.1:{port}", "people-value") == {7: '"string"'}
    monkeypatch.setenv(TOKEN, SECRET)
    assert read_schemas(f"http://127.0.0.1:{port}", "people-value") == {7: '"string"'}
    assert servers[0].logins[-1] == f"Bearer {SECRET}"


@pytest.mark.parametrize(
    ("url", "subject", "said"),
    [
        ("http://key:{secret}@127.0.0.1:{port}", "nothing", "HTTP status 401.*" + USER_INFO),
        ("http://key:{secret}@127.0.0.1:{port}", "garbled", "does not tell the schemas"),
        ("http://key:{secret}@127.0.0.1:{port}", "moved", "HTTP status 302"),
        ("http://key:{secret}@127.0.0.1:1", "people-value", "URLError"),
        ("http://key:{secret}", "people-value", "cannot be read"),
        ("http://key:{secret}@[127.0.0.1:{port}", "people-value", "cannot be read"),
        ("key:{secret}@127.0.0.1:{port}", "people-value", "cannot be read"),
    ],
)
def test_no_error_prints_the_secret(servers: list[Any], url: str, subject: str, said: str) -> None:
    address = url.format(secret=SECRET, port=servers[0].server_port)
    with pytest.raises(ConfigurationError, match=said) as refused:
        read_schemas(address, subject)
    whole = f"{refused.value} {refused.value.__cause__!r}"
    assert SECRET not in whole
    assert BASIC not in whole
    assert servers[1].logins == [], "a login goes nowhere else"
