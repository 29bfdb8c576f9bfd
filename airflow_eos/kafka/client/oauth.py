"""Tokens for SASL/OAUTHBEARER: OIDC client credentials (KIP-768), or the caller's own function."""

from __future__ import annotations

import base64
import ipaddress
import json
import math
import os
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import ConfigurationError, KafkaError, KafkaUnavailableError, Remedy
from airflow_eos.kafka.client.messages import AbstractTokenProvider

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_TIMEOUT_S = 10.0
_MOST_BYTES = 1 << 20  # of an answer: a token is a few KiB, and whoever answers may be anybody
HTTP_HOSTS = "AIRFLOW_EOS_HTTP_TOKEN_HOSTS"
"""Environment variable: hosts, separated by commas, that may be asked for tokens without TLS."""
_USED_SHARE = 0.8
"""A token is renewed when this share of its life has passed."""


def token_provider(config: Mapping[str, Any]) -> AbstractTokenProvider:
    """What kafka-python asks for a token whenever a connection logs in.

    Raises:
        ConfigurationError: neither ``sasl.oauthbearer.method=oidc`` nor an ``oauth_cb`` function,
            or an endpoint that is asked without TLS.
    """
    callback = config.get("oauth_cb")
    if callable(callback):
        return _Cached(lambda: _asked(callback, str(config.get("sasl.oauthbearer.config", ""))))
    if str(config.get("sasl.oauthbearer.method", "")).lower() != "oidc":
        raise ConfigurationError(
            "sasl.mechanism=OAUTHBEARER needs sasl.oauthbearer.method=oidc (client credentials) "
            "or an oauth_cb function; found neither."
        )
    missing = [
        key
        for key in (
            "sasl.oauthbearer.token.endpoint.url",
            "sasl.oauthbearer.client.id",
            "sasl.oauthbearer.client.secret",
        )
        if not config.get(key)
    ]
    if missing:
        raise ConfigurationError(f"sasl.oauthbearer.method=oidc also needs {', '.join(missing)}.")
    url = str(config["sasl.oauthbearer.token.endpoint.url"])
    _check_endpoint(url)
    return _Cached(lambda: _client_credentials(url, config), extensions=_extensions(config))


def _check_endpoint(url: str) -> None:
    """Refuse to send a secret where everybody on the way can read it."""
    try:
        endpoint = urllib.parse.urlsplit(url)
        host = endpoint.hostname or ""
        endpoint.port  # noqa: B018 - reading it is the check
    except ValueError:
        raise ConfigurationError(
            "sasl.oauthbearer.token.endpoint.url cannot be read: expected https://host[:port]/path."
        ) from None  # it may quote a password
    if endpoint.scheme not in {"https", "http"} or not host:
        raise ConfigurationError(
            f"sasl.oauthbearer.token.endpoint.url={_printable(url)!r} is not an https URL."
        )
    allowed = os.environ.get(HTTP_HOSTS, "").split(",")
    if endpoint.scheme == "http" and not _is_loopback(host) and host not in allowed:
        raise ConfigurationError(
            f"sasl.oauthbearer.token.endpoint.url={_printable(url)!r} would send the client secret "
            f"unencrypted to {host}. Give an https URL; where the way is safe by other means, "
            f"allow the host on the driver and on every executor with {HTTP_HOSTS}={host}."
        )
    if endpoint.username is not None or endpoint.password is not None:
        # urllib takes it for a part of the host's name, and no endpoint would ever get it.
        raise ConfigurationError(
            f"sasl.oauthbearer.token.endpoint.url={_printable(url)!r} was given with a login.",
            Remedy(
                change="take it out of the URL, and give sasl.oauthbearer.client.id and "
                "sasl.oauthbearer.client.secret",
                start=True,
            ),
        )


def _printable(url: str) -> str:
    """Without what may be secret: a login, and what a query says."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit(
        (parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An endpoint that moved is an error: urllib would carry the secret to wherever it points."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none: the answer becomes an HTTPError."""
        return


class _Cached(AbstractTokenProvider):  # type: ignore[misc]
    """A token kept until most of its life has passed, whatever thread asks."""

    def __init__(
        self, fetch: Callable[[], tuple[str, float]], *, extensions: dict[str, str] | None = None
    ) -> None:
        super().__init__()
        self._fetch = fetch
        self._extensions = extensions or {}
        self._lock = threading.Lock()
        self._token = ""
        self._renew_at = 0.0

    def token(self) -> str:
        with self._lock:
            if time.monotonic() >= self._renew_at:
                self._token, seconds = self._fetch()
                self._renew_at = time.monotonic() + seconds * _USED_SHARE
            return self._token

    def extensions(self) -> dict[str, str]:
        return self._extensions


def _asked(callback: Callable[[str], tuple[str, float]], argument: str) -> tuple[str, float]:
    # confluent-kafka's convention: (token, seconds since the epoch at which it expires)
    token, expires_at_s = callback(argument)[:2]
    return token, max(expires_at_s - time.time(), 0.0)


_OPENER = urllib.request.build_opener(_NoRedirect)


def _client_credentials(url: str, config: Mapping[str, Any]) -> tuple[str, float]:
    """RFC 6749 section 4.4; the answer's body is never shown, it may hold a token."""
    form = {"grant_type": "client_credentials"}
    if config.get("sasl.oauthbearer.scope"):
        form["scope"] = str(config["sasl.oauthbearer.scope"])
    who = f"{config['sasl.oauthbearer.client.id']}:{config['sasl.oauthbearer.client.secret']}"
    request = urllib.request.Request(  # noqa: S310 - the scheme was checked
        url,
        data=urllib.parse.urlencode(form).encode(),
        headers={
            "Authorization": "Basic " + base64.b64encode(who.encode()).decode(),
            "Accept": "application/json",
        },
    )
    try:
        with _OPENER.open(request, timeout=_TIMEOUT_S) as answer:
            body = json.loads(answer.read(_MOST_BYTES))  # cut off, it is no JSON
        token, seconds = str(body["access_token"]), float(body.get("expires_in", 60))
        if not math.isfinite(seconds):
            raise ValueError  # noqa: TRY301 - a token for ever is none
        return token, max(seconds, 0.0)
    except urllib.error.HTTPError as error:
        reason = f"HTTP status {error.code}"
        if 300 <= error.code < 400:
            moved = urllib.parse.urlsplit(error.headers.get("Location", "")).hostname
            reason += f", a redirect to {moved or 'another path'}, which is not followed"
        # 429 and 5xx pass; any other status will be the same tomorrow (RFC 6749 section 5.2).
        kind = KafkaUnavailableError if error.code == 429 or error.code >= 500 else KafkaError
    except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError) as error:
        reason, kind = type(error).__name__, KafkaUnavailableError
    raise kind(
        f"No token from {_printable(url)}: {reason}. Check sasl.oauthbearer.token.endpoint.url, "
        "the client id and the client secret."
    ) from None


def _extensions(config: Mapping[str, Any]) -> dict[str, str]:
    pairs = str(config.get("sasl.oauthbearer.extensions", "")).split(",")
    return dict(pair.strip().split("=", 1) for pair in pairs if "=" in pair)
