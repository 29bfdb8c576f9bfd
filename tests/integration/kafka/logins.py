"""Every way to log in to Kafka, on one embedded broker: users, certificates, a token endpoint."""

from __future__ import annotations

import base64
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from airflow_eos.local import EmbeddedKafka

USER, SECRET, WRONG = "etl", "hunter2-MARKER-of-the-secret", "wrong-MARKER-of-the-secret"
MARKER = "MARKER-of-the-secret"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_LOGIN = "org.apache.kafka.common.security"


@dataclass(frozen=True)
class Authority:
    """Certificates in one folder, all signed by its own authority; keys are not encrypted."""

    folder: Path

    def __post_init__(self) -> None:
        self._openssl("ca", "/CN=ca")
        for name in ("broker", "client"):
            signed = f"-CA {self.folder}/ca.pem -CAkey {self.folder}/ca.key"
            self._openssl(name, f"/CN={name}", f"{signed} -addext subjectAltName=IP:127.0.0.1")
        self._openssl("stranger", "/CN=client")
        both = self.file("broker.key").read_text() + self.file("broker.pem").read_text()
        self.file("broker-both.pem").write_text(both)

    def file(self, name: str) -> Path:
        return self.folder / name

    def _openssl(self, name: str, subject: str, further: str = "") -> None:
        command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj {subject} {further}"
        command += f" -keyout {self.folder}/{name}.key -out {self.folder}/{name}.pem"
        subprocess.run(command.split(), check=True, capture_output=True)


@contextmanager
def broker_with_logins(authority: Authority) -> Iterator[EmbeddedKafka]:
    """A broker that knows ``USER`` by every mechanism, and by certificate."""
    sasl, tls = "listener.name.sasl", "listener.name.tls"
    properties = {
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        f"{sasl}.plain.sasl.jaas.config": (
            f'{_LOGIN}.plain.PlainLoginModule required user_{USER}="{SECRET}";'
        ),
        f"{sasl}.scram-sha-256.sasl.jaas.config": f"{_LOGIN}.scram.ScramLoginModule required;",
        f"{sasl}.scram-sha-512.sasl.jaas.config": f"{_LOGIN}.scram.ScramLoginModule required;",
        # Kafka's own validator of unsecured tokens, made for tests (KIP-255).
        f"{sasl}.oauthbearer.sasl.jaas.config": (
            f"{_LOGIN}.oauthbearer.OAuthBearerLoginModule required "
            'unsecuredLoginStringClaim_sub="broker";'
        ),
        f"{tls}.ssl.keystore.type": "PEM",
        f"{tls}.ssl.keystore.location": str(authority.file("broker-both.pem")),
        f"{tls}.ssl.truststore.type": "PEM",
        f"{tls}.ssl.truststore.location": str(authority.file("ca.pem")),
        f"{tls}.ssl.client.auth": "required",
    }
    listeners = {"SASL": "SASL_PLAINTEXT", "TLS": "SSL"}
    with EmbeddedKafka(properties, listeners=listeners) as broker:
        _add_scram_users(broker)
        yield broker


def _add_scram_users(broker: EmbeddedKafka) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    kinds = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
    for kind in kinds:
        user = UserScramCredentialUpsertion(USER, ScramCredentialInfo(kind, 4096), SECRET.encode())
        for done in admin.alter_user_scram_credentials([user]).values():
            done.result(30)


@contextmanager
def token_endpoint() -> Iterator[str]:
    """Gives an unsecured token to whoever knows ``SECRET`` (RFC 6749 section 4.4)."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Endpoint)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/token"
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


class _Endpoint(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        expected = "Basic " + base64.b64encode(f"{USER}:{SECRET}".encode()).decode()
        known = self.headers.get("Authorization") == expected
        body = json.dumps(
            {"access_token": _unsecured_token(), "expires_in": 300, "token_type": "bearer"}
            if known
            else {"error": "invalid_client"}
        ).encode()
        self.send_response(200 if known else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


def _unsecured_token() -> str:
    now = int(time.time())
    parts = ({"alg": "none"}, {"sub": USER, "iat": now, "exp": now + 300})
    encoded = [base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts]
    return ".".join([*encoded, ""])


def sasl(broker: EmbeddedKafka, mechanism: str, secret: str, endpoint: str) -> dict[str, str]:
    """librdkafka's configuration for a login with a secret."""
    common = {
        "bootstrap.servers": broker.addresses("SASL"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
    }
    if mechanism != "OAUTHBEARER":
        return common | {"sasl.username": USER, "sasl.password": secret}
    return common | {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": endpoint,
        "sasl.oauthbearer.client.id": USER,
        "sasl.oauthbearer.client.secret": secret,
    }


def mutual_tls(broker: EmbeddedKafka, authority: Authority, who: str | None) -> dict[str, str]:
    """librdkafka's configuration for a login with a certificate, or without one."""
    config = {
        "bootstrap.servers": broker.addresses("TLS"),
        "security.protocol": "SSL",
        "ssl.ca.location": str(authority.file("ca.pem")),
    }
    if who is None:
        return config
    return config | {
        "ssl.certificate.location": str(authority.file(f"{who}.pem")),
        "ssl.key.location": str(authority.file(f"{who}.key")),
    }
