"""A task writes, another process commits and a reader reads, with every kind of login."""

from __future__ import annotations

import base64
import json
import logging
import subprocess
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from airflow_eos.errors import KafkaError, KafkaUnavailableError
from airflow_eos.kafka.client.compacted_topic import Appender
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.sink import PRODUCERS, Producer, open_writer
from airflow_eos.kafka.transactions.coordinator import end_transactions
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


# --- what each of them can do ---------------------------------------------------------------------


Config = dict[str, str]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker(authority: Authority) -> Iterator[EmbeddedKafka]:
    with broker_with_logins(authority) as running:
        yield running


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with token_endpoint() as url:
        yield url


@pytest.fixture
def deliver(broker: EmbeddedKafka, read: Callable[..., list[Any]]) -> Callable[..., list[bytes]]:
    """``deliver(config, producer)``: what is read of two rows that were written and committed."""

    def through(config: Config, producer: Producer) -> list[bytes]:
        topic = broker.create_topic(f"out-{uuid.uuid4().hex[:8]}")
        settings = KafkaSettings.from_librdkafka(config)
        writer: Any = open_writer(settings, producer=producer, topic=topic, compression="lz4")
        with writer._wire:
            writer.begin(f"{topic}-0-0", 60_000)
            writer.write(pa.RecordBatch.from_pydict({"value": ["a", "b"]}))
            written = writer.prepare()
        with ConnectionPool(settings) as wire:
            end_transactions(wire, [written.identity], commit=True)
        return [m.value() for m in read(topic, broker.bootstrap_servers)]

    return through


@pytest.mark.long
@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_rows_are_delivered_with_a_login(broker, endpoint, deliver, mechanism, producer):
    assert deliver(sasl(broker, mechanism, SECRET, endpoint), producer) == [b"a", b"b"]


@pytest.mark.long
@pytest.mark.parametrize("producer", PRODUCERS)
def test_rows_are_delivered_with_a_certificate(broker, authority, deliver, producer):
    assert deliver(mutual_tls(broker, authority, "client"), producer) == [b"a", b"b"]


def refused(attempt: Callable[[], Any], caplog: pytest.LogCaptureFixture) -> str:
    """Refused soon, as what repeating does not heal, and no secret is shown."""
    caplog.set_level(logging.DEBUG)
    with pytest.raises(KafkaError) as error:
        attempt()
    assert not isinstance(error.value, KafkaUnavailableError), error.value
    assert MARKER not in "".join(traceback.format_exception(error.value)) + caplog.text
    return str(error.value)


@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_secret_is_said_and_not_shown(
    broker, endpoint, deliver, caplog, mechanism, producer
):
    said = refused(lambda: deliver(sasl(broker, mechanism, WRONG, endpoint), producer), caplog)
    if mechanism == "OAUTHBEARER":
        assert f"No token from {endpoint}: HTTP status 401" in said
        assert "client secret" in said
    else:
        assert "did not accept this client" in said
        assert "sasl.mechanism and its credentials" in said


def changed(broker: EmbeddedKafka, user: str, secret: str) -> None:
    """The password of a user of this test alone."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    change = UserScramCredentialUpsertion(user, info, secret.encode())
    for done in admin.alter_user_scram_credentials([change]).values():
        done.result(30)


@pytest.mark.parametrize(
    "ask",
    [
        lambda wire, _: wire.cluster.brokers(),
        pytest.param(
            lambda _, notes: (notes.append(b"k", b"v"), notes.flush()), marks=pytest.mark.long
        ),
    ],
    ids=["which brokers run", "a note of a decision"],
)
def test_a_password_that_is_changed_under_a_driver_is_not_said_to_be_a_broker_away(
    broker, caplog, ask
):
    """After a minute it was said that no broker runs, and to check them."""
    user = f"u{uuid.uuid4().hex[:8]}"
    changed(broker, user, SECRET)
    config = sasl(broker, "SCRAM-SHA-256", SECRET, "") | {"sasl.username": user}
    settings = KafkaSettings.from_librdkafka(config)
    notes = Appender(settings, broker.create_topic(f"notes-{user}"))
    with ConnectionPool(settings) as wire:
        ask(wire, notes)
        changed(broker, user, WRONG)
        broker.kill(1)  # with it the connections, which outlive a change
        broker.start(1)
        assert "did not accept this client" in refused(lambda: ask(wire, notes), caplog)
        changed(broker, user, SECRET)
        ask(wire, notes)
    notes.close()


@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("who", ["stranger", None], ids=["another authority's", "none"])
def test_a_certificate_that_the_broker_does_not_trust(
    broker, authority, deliver, caplog, who, producer
):
    said = refused(lambda: deliver(mutual_tls(broker, authority, who), producer), caplog)
    assert "did not accept this client" in said
    assert "ssl.certificate.location" in said


# --- what is renewed in place ---------------------------------------------------------------------


class Files:
    """The files of a client, whose content is replaced while it lives."""

    def __init__(self, broker: EmbeddedKafka, authority: Authority, folder: Path) -> None:
        self._authority, self._folder = authority, folder
        self.put("client")
        config = mutual_tls(broker, authority, None) | {
            "ssl.certificate.location": str(folder / "used.pem"),
            "ssl.key.location": str(folder / "used.key"),
        }
        self.settings = KafkaSettings.from_librdkafka(config)

    def put(self, who: str, *kinds: str) -> None:
        for kind in kinds or ("key", "pem"):
            made = self._folder / f".used.{kind}"
            made.write_bytes(self._authority.file(f"{who}.{kind}").read_bytes())
            made.replace(self._folder / f"used.{kind}")


def connected_anew(wire: ConnectionPool, topic: str) -> int:
    """Drop all connections, as an idle one is, and ask through a new one."""
    for each in list(wire._manager._conns.values()):
        wire._net.call_soon_threadsafe(each.close)
    return len(wire.cluster.leaders(topic, refresh=True))


def test_a_certificate_renewed_in_its_file_is_that_of_the_next_connection(
    broker: EmbeddedKafka, authority: Authority, tmp_path: Path
) -> None:
    """The one of the start expires; a stranger's is refused as an expired one is."""
    topic = broker.create_topic(f"out-{uuid.uuid4().hex[:8]}")
    files = Files(broker, authority, tmp_path)
    with ConnectionPool(files.settings) as wire:
        assert connected_anew(wire, topic) == 1
        files.put("stranger", "pem")  # and not its key yet: the two do not fit
        assert connected_anew(wire, topic) == 1
        files.put("stranger")
        with pytest.raises(KafkaError, match="did not accept this client"):
            connected_anew(wire, topic)
        files.put("broker")  # another one of the known authority
        assert connected_anew(wire, topic) == 1


def test_the_memory_of_prefixes_takes_up_a_renewed_certificate(
    broker: EmbeddedKafka, authority: Authority, tmp_path: Path, read: Callable[..., list[Any]]
) -> None:
    """Its librdkafka client lives for months, and has the certificate of its beginning for good."""
    topic = broker.create_topic(f"kept-{uuid.uuid4().hex[:8]}")
    files = Files(broker, authority, tmp_path)
    appender = Appender(files.settings, topic)
    clients = []
    for number, put in enumerate(((), ("broker", "pem"), ("broker", "key"))):
        if put:
            files.put(*put)
        appender.append(b"k", b"%d" % number)
        appender.flush()
        clients.append(appender._producer)
    appender.close()
    assert clients[0] is clients[1], "a certificate without its key: the client before stays"
    assert clients[1] is not clients[2]
    assert [each.value() for each in read(topic, broker.bootstrap_servers)] == [b"0", b"1", b"2"]
