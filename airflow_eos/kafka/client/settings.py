"""Connection settings of a Kafka cluster, given once and translated for each client.

The form is librdkafka's, because Airflow's ``kafka`` connection has it in its ``extra``. Three
clients read the settings: librdkafka itself, kafka-python (transactions, writing) and the Java
client inside Spark.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import math
import os
import re
import shlex
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from http.client import HTTPException
from pathlib import Path
from typing import Any, Self

from airflow_eos.core.arguments import Settings
from airflow_eos.core.log import Log
from airflow_eos.errors import ConfigurationError, KafkaError, KafkaUnavailableError, Remedy
from airflow_eos.kafka.client.messages import AbstractTokenProvider
from airflow_eos.secret_names import is_secret

log = Log(__name__)

_TIMEOUT_S = 10.0
_MOST_BYTES = 1 << 20  # of a token response: a token is a few KiB; the server may be anybody's
HTTP_HOSTS = "AIRFLOW_EOS_HTTP_TOKEN_HOSTS"
"""Environment variable: hosts, separated by commas, that may be asked for tokens without TLS."""
_USED_SHARE = 0.8
"""The share of a token's life after which it is renewed."""


def check_servers(given: object) -> None:
    """Refuse ``bootstrap_servers`` that are no text, without showing them: settings have passwords.

    Raises:
        ConfigurationError: they are no text, or empty.
    """
    if not isinstance(given, str) or not given.strip():
        found = "an empty text" if isinstance(given, str) else f"a value of {type(given).__name__}"
        raise ConfigurationError(
            f"bootstrap_servers: expected 'host:port,host:port', found {found}. All other settings "
            "of the connection go into kafka_config."
        )


def token_provider(config: Mapping[str, Any]) -> AbstractTokenProvider:
    """Return the object that kafka-python asks for a token whenever a connection logs in.

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
    """Refuse a token endpoint that cannot be read, has a login, or gets the secret unencrypted."""
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
    # A password may have a slash, and what is before that may look like a port.
    if "@" in endpoint.netloc or (endpoint.port is not None and "@" in endpoint.path):
        # urllib takes a login for a part of the host's name, and would never send it.
        raise ConfigurationError(
            f"sasl.oauthbearer.token.endpoint.url={_printable(url)!r} was given with a login.",
            Remedy(
                change="take it out of the URL, and give sasl.oauthbearer.client.id and "
                "sasl.oauthbearer.client.secret",
                start=True,
            ),
        )


def _printable(url: str) -> str:
    """Return a URL without the parts that may be secret: its login and its query."""
    parts = urllib.parse.urlsplit(url)
    shown = (parts.netloc + parts.path).rpartition("@")[2]
    return f"{parts.scheme}://{shown}" if parts.scheme else shown


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refusal of redirects: urllib would send the client secret to wherever one points."""

    def redirect_request(self, *_: Any) -> None:
        """Follow no redirect: the response becomes an HTTPError."""
        return


class _Cached(AbstractTokenProvider):  # type: ignore[misc]
    """Token provider that caches a token until most of its life has passed; thread-safe."""

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
    """Return a token and its life in s (RFC 6749 4.4); never show the body: it may hold a token."""
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
            body = json.loads(answer.read(_MOST_BYTES))  # cut off, it is not JSON
        token, seconds = str(body["access_token"]), float(body.get("expires_in", 60))
        if not math.isfinite(seconds):
            raise ValueError  # noqa: TRY301 - a token for ever is none
        return token, max(seconds, 0.0)
    except urllib.error.HTTPError as error:
        reason = f"HTTP status {error.code}"
        if 300 <= error.code < 400:
            moved = urllib.parse.urlsplit(error.headers.get("Location", "")).hostname
            reason += f", a redirect to {moved or 'another path'}, which is not followed"
        # 429 and 5xx pass by themselves; any other status does not (RFC 6749 section 5.2).
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


_NOT_FOR_PYTHON = {
    "ssl.certificate.pem": "ssl.certificate.location",
    "ssl.key.pem": "ssl.key.location",
    "ssl.keystore.location": "ssl.certificate.location and ssl.key.location",
    "ssl.engine.location": "ssl.certificate.location and ssl.key.location",
}


def verifies(config: Mapping[str, Any]) -> bool:
    """Whether the broker's certificate has to be signed by a trusted authority."""
    value = config.get("enable.ssl.certificate.verification", "true")
    return str(value).strip().lower() not in {"false", "0", "f"}


def checks_host(config: Mapping[str, Any]) -> bool:
    """Whether the broker's certificate has to name the host that was connected to."""
    algorithm = str(config.get("ssl.endpoint.identification.algorithm", "https")).lower()
    return algorithm not in {"none", ""}


def tell_what_is_not_verified(config: Mapping[str, Any]) -> None:
    """Warn, once per process, of each setting that lets others on the network pose as a broker."""
    if not verifies(config):
        _tell(
            "enable.ssl.certificate.verification=false",
            "others on the network can pose as the broker: give the authority's certificate as "
            "ssl.ca.location instead",
        )
    if not checks_host(config):
        _tell(
            "ssl.endpoint.identification.algorithm=none",
            "others with a certificate of the same authority can pose as the broker: use names "
            "that are in the brokers' certificates instead",
        )


@cache
def _tell(setting: str, hint: str) -> None:
    log.warning("tls_not_verified", setting=setting, hint=hint)


def key_text(config: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the location and the text of the client's key; None where none is given or readable.

    The text of a binary file is empty.
    """
    location = config.get("ssl.key.location") or config.get("ssl.certificate.location")
    try:
        return None if not location else (str(location), Path(str(location)).read_text())
    except UnicodeDecodeError:
        return str(location), ""
    except OSError:
        return None


def converted(location: str, text: str) -> Remedy:
    """Return the remedy that converts a key to the form that every client reads: PKCS#8 in PEM."""
    form = "" if text else "-inform DER "
    key, made = shlex.quote(location), shlex.quote(f"{location}.pk8.pem")
    return Remedy(
        commands=(f"openssl pkcs8 -topk8 -nocrypt {form}-in {key} -out {made}",),
        settings={"ssl.key.location": f"{location}.pk8.pem"},
        start=True,
        costs="the file is not encrypted: let its owner alone read it",
    )


def _of_the_key(config: Mapping[str, Any]) -> tuple[Remedy, ...]:
    """Return the remedies for a key that cannot be loaded because of its form."""
    found = key_text(config)
    if found is None:
        return ()
    location, text = found
    if "ENCRYPTED" in text:
        return (Remedy(change="give the key's own password as ssl.key.password", start=True),)
    return () if text else (converted(location, text),)


def context(config: Mapping[str, Any]) -> ssl.SSLContext:
    """Return the TLS context for clients that are written in Python.

    Raises:
        ConfigurationError: a certificate cannot be loaded, or only librdkafka could use it.
    """
    for key, instead in _NOT_FOR_PYTHON.items():
        if key in config:
            raise ConfigurationError(f"{key} is only usable by librdkafka; give {instead} instead.")
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.check_hostname = checks_host(config)
    if not verifies(config):
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    authority = config.get("ssl.ca.location")
    try:
        if config.get("ssl.ca.pem"):
            made.load_verify_locations(cadata=str(config["ssl.ca.pem"]))
        elif authority and authority != "probe":
            made.load_verify_locations(str(authority))
        else:
            made.load_default_certs()
        if config.get("ssl.certificate.location"):
            made.load_cert_chain(
                str(config["ssl.certificate.location"]),
                config.get("ssl.key.location"),
                config.get("ssl.key.password") or "",  # given None, OpenSSL asks on the terminal
            )
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigurationError(
            f"The TLS files cannot be used: {error}. Checked ssl.ca.location={authority!r}, "
            f"ssl.certificate.location={config.get('ssl.certificate.location')!r}, "
            f"ssl.key.location={config.get('ssl.key.location')!r} and ssl.key.password.",
            *_of_the_key(config),
        ) from error
    return made


# --- java options ---------------------------------------------------------------------------------
# librdkafka's TLS and SASL settings as options of the Java client inside Spark.


_MODULE = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
    "GSSAPI": "com.sun.security.auth.module.Krb5LoginModule",
}
_OAUTH_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"


def tls_options(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the TLS options of Spark's Java client, with trust and key stores in PEM (KIP-651).

    A key and its certificate in two files go inline, because Java's PEM key store is one file.
    Set ``spark.redaction.regex`` to ``secret_names.spark_redaction_regex()`` then: Spark's UI may
    show the key otherwise.

    Raises:
        ConfigurationError: Java cannot leave certificates unverified, or a file is not readable.
    """
    if not verifies(config):
        raise ConfigurationError(
            "enable.ssl.certificate.verification=false has no counterpart in Spark's Java client; "
            "give the authority's certificate as ssl.ca.location."
        )
    options: dict[str, str] = {}
    authority = config.get("ssl.ca.location")
    if config.get("ssl.ca.pem"):
        options["kafka.ssl.truststore.type"] = "PEM"
        options["kafka.ssl.truststore.certificates"] = str(config["ssl.ca.pem"])
    elif authority and authority != "probe":
        options["kafka.ssl.truststore.type"] = "PEM"
        options["kafka.ssl.truststore.location"] = str(authority)
    if not checks_host(config):
        options["kafka.ssl.endpoint.identification.algorithm"] = ""
    return options | _key_store(config)


def _key_store(config: Mapping[str, Any]) -> dict[str, str]:
    chain, key = config.get("ssl.certificate.location"), config.get("ssl.key.location")
    if not chain:
        return {}
    require_java_reads(config)
    options = {"kafka.ssl.keystore.type": "PEM"}
    if key and key != chain:
        options["kafka.ssl.keystore.certificate.chain"] = _text(chain)
        options["kafka.ssl.keystore.key"] = _text(key)
    else:
        options["kafka.ssl.keystore.location"] = str(chain)
    if config.get("ssl.key.password"):
        options["kafka.ssl.key.password"] = str(config["ssl.key.password"])
    return options


def require_java_reads(config: Mapping[str, Any], java: int | None = None) -> None:
    """Refuse a client's key that Java cannot read, though librdkafka and Python can.

    Java reads PKCS#8 in PEM; a key encrypted with PBES2 only from Java 19 on (JDK-8076999).

    Args:
        java: Java's version, where it is known.

    Raises:
        ConfigurationError: with the command that converts the key.
    """
    found = key_text(config)
    if found is None:
        return
    location, text = found
    blocks = _KEY.findall(text)
    form = blocks[0][0].strip() if blocks else ""
    encrypted = form == "ENCRYPTED"
    if encrypted and java is not None and java < _READS_PBES2 and _is_pbes2(blocks[0][1]):
        what = f"encrypted with PBES2, which Java {java} does not read (JDK-8076999)"
    elif encrypted and not config.get("ssl.key.password"):
        what = "encrypted, and no ssl.key.password is given"
    elif form and not encrypted:
        what = f"in the form of 'BEGIN {form} PRIVATE KEY'" + (" (PKCS#1)" if form == "RSA" else "")
    elif not text:
        what = "in binary form (DER)"
    else:
        return  # a form that Java reads, or one that is not known here: then Java raises
    raise ConfigurationError(
        f"The client's key {location} is {what}. Spark's Kafka source reads with Java's client, "
        "which takes PKCS#8 in PEM ('BEGIN PRIVATE KEY').",
        converted(location, text),
    )


_KEY = re.compile(r"-----BEGIN ([A-Z ]*)PRIVATE KEY-----(.*?)-----END", re.DOTALL)
_READS_PBES2 = 19
_PBES2 = bytes.fromhex("06092a864886f70d01050d")  # the object identifier 1.2.840.113549.1.5.13


def _is_pbes2(block: str) -> bool:
    try:
        return _PBES2 in base64.b64decode("".join(block.split()))
    except ValueError:
        return False


def _text(location: object) -> str:
    try:
        return Path(str(location)).read_text()
    except OSError as error:
        raise ConfigurationError(f"{location} cannot be read: {error.strerror}.") from error


def sasl_options(config: Mapping[str, Any], mechanism: str) -> dict[str, str]:
    """Return the SASL options of Spark's Java client, with a ``sasl.jaas.config`` (KIP-85, 768)."""
    options = {"kafka.sasl.mechanism": mechanism}
    if mechanism == "OAUTHBEARER":
        arguments = {
            "clientId": config.get("sasl.oauthbearer.client.id"),
            "clientSecret": config.get("sasl.oauthbearer.client.secret"),
            "scope": config.get("sasl.oauthbearer.scope"),
            **{f"extension_{name}": value for name, value in _extensions(config).items()},
        }
        url = config.get("sasl.oauthbearer.token.endpoint.url")
        if not url:
            raise ConfigurationError(
                "Spark's Java client can only do OAUTHBEARER by client credentials: give "
                "sasl.oauthbearer.method=oidc and sasl.oauthbearer.token.endpoint.url."
            )
        options["kafka.sasl.oauthbearer.token.endpoint.url"] = str(url)
        options["kafka.sasl.login.callback.handler.class"] = _OAUTH_HANDLER
    elif mechanism == "GSSAPI":
        arguments = {
            "useKeyTab": "true" if config.get("sasl.kerberos.keytab") else None,
            "keyTab": config.get("sasl.kerberos.keytab"),
            "principal": config.get("sasl.kerberos.principal"),
            "useTicketCache": None if config.get("sasl.kerberos.keytab") else "true",
        }
        options["kafka.sasl.kerberos.service.name"] = str(
            config.get("sasl.kerberos.service.name", "kafka")
        )
    else:
        arguments = {
            "username": config.get("sasl.username"),
            "password": config.get("sasl.password"),
        }
    quoted = {
        name: str(value).replace("\\", "\\\\").replace('"', '\\"')
        for name, value in arguments.items()
        if value is not None
    }
    given = " ".join(f'{name}="{value}"' for name, value in quoted.items())
    options["kafka.sasl.jaas.config"] = f"{_MODULE[mechanism]} required {given};"
    return options


# --- settings -------------------------------------------------------------------------------------


_ALIASES = {
    "metadata.broker.list": "bootstrap.servers",
    "sasl.mechanism": "sasl.mechanisms",  # librdkafka knows both names
}
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
_WITH_PASSWORD = _MECHANISMS[:3]
DEFAULT_TOPIC = "airflow-eos.prefixes"
_PREFIXES_TOPIC = "airflow-eos.prefixes.topic"
"""This package's own setting among librdkafka's, so that sink, commands and DAGs all get it."""
_TOPIC = r"[A-Za-z0-9._-]{1,249}"
_PLAIN_NUMBERS = {  # librdkafka's name → kafka-python's, both in milliseconds
    "socket.timeout.ms": "request_timeout_ms",
    "socket.connection.setup.timeout.ms": "socket_connection_setup_timeout_ms",
    "reconnect.backoff.ms": "reconnect_backoff_ms",
    "reconnect.backoff.max.ms": "reconnect_backoff_max_ms",
    "metadata.max.age.ms": "metadata_max_age_ms",
}


_TLS_FILES = (
    *("ssl.ca.location", "ssl.certificate.location", "ssl.key.location"),
    *("ssl.keystore.location", "ssl.crl.location"),
)


def _content(location: object) -> bytes | None:
    try:
        return None if location is None else Path(str(location)).read_bytes()
    except OSError:  # or a folder of certificates
        return None


@cache
def _understood(settings: KafkaSettings) -> dict[str, Any]:
    """Return librdkafka's settings, checked by making a client: no list of ours has them all."""
    from confluent_kafka import KafkaException, Producer

    theirs = {key: value for key, value in settings.items if key != _PREFIXES_TOPIC}
    try:
        Producer({"log_level": 0, **theirs})  # sends nothing before it is used
    except KafkaException as error:
        found = error.args[0].str()
    except (TypeError, ValueError) as error:
        found = str(error)
    else:
        return theirs
    raise ConfigurationError(f"librdkafka does not take the Kafka settings: {found}.")


@dataclass(frozen=True, slots=True, repr=False)
class KafkaSettings:
    """Connection settings of one cluster: hashable, picklable (for executors), secrets not shown.

    Make one with :meth:`from_librdkafka`. Keys that only librdkafka understands are kept for it.
    """

    items: tuple[tuple[str, Any], ...]

    @classmethod
    def from_librdkafka(cls, config: Mapping[str, Any]) -> Self:
        """Check a librdkafka-style configuration and return the settings.

        Raises:
            ConfigurationError: no ``bootstrap.servers``, or a protocol, mechanism or credential
                that cannot work. No message shows a secret.
        """
        given = Settings().of("kafka_config", config)
        known = {_ALIASES.get(k, k): v for k, v in given.items() if v is not None}
        servers = known.get("bootstrap.servers")
        if isinstance(servers, (list, tuple)):
            servers = ",".join(str(server) for server in servers)
        if not isinstance(servers, str) or not servers.strip(" ,"):
            raise ConfigurationError(
                "The Kafka settings have no bootstrap.servers. Give it as 'host:port,host:port'; "
                "in an Airflow connection of type kafka it belongs into the extra."
            )
        known["bootstrap.servers"] = ",".join(s.strip() for s in servers.split(",") if s.strip())
        settings = cls(tuple(sorted(known.items())))
        settings._check()
        return settings

    def _check(self) -> None:
        if re.fullmatch(_TOPIC, self.prefixes_topic) is None:
            raise ConfigurationError(
                f"{_PREFIXES_TOPIC}={self.prefixes_topic!r} cannot be a topic: expected 1 to 249 "
                "letters, digits, dots, underscores or hyphens (ASCII)."
            )
        self._require("security.protocol", self.security_protocol, _PROTOCOLS)
        if self.security_protocol.endswith("SSL"):
            tell_what_is_not_verified(self.config())
        if not self.security_protocol.startswith("SASL"):
            return
        self._require("sasl.mechanisms", self.sasl_mechanism, _MECHANISMS)
        if self.sasl_mechanism in _WITH_PASSWORD:
            for key in ("sasl.username", "sasl.password"):
                if not self.get(key):
                    raise ConfigurationError(
                        f"sasl.mechanism={self.sasl_mechanism} needs {key}, which is not given."
                    )

    def _require(self, key: str, value: str, allowed: tuple[str, ...]) -> None:
        if value not in allowed:
            raise ConfigurationError(
                f"{key}={self.get(key)!r} is not known; expected one of {', '.join(allowed)}."
            )

    def get(self, key: str, default: Any = None) -> Any:
        """Return a setting's value by librdkafka's name of it."""
        return dict(self.items).get(_ALIASES.get(key, key), default)

    @property
    def bootstrap_servers(self) -> str:
        """The bootstrap servers, each as ``host:port``, comma separated."""
        return str(self.get("bootstrap.servers"))

    @property
    def security_protocol(self) -> str:
        """The security protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
        return str(self.get("security.protocol", "PLAINTEXT")).upper()

    @property
    def sasl_mechanism(self) -> str:
        """The SASL mechanism; librdkafka's default is GSSAPI."""
        return str(self.get("sasl.mechanisms", "GSSAPI")).upper()

    def __repr__(self) -> str:
        shown = {k: "***" if is_secret(k) else v for k, v in self.items}
        return f"KafkaSettings({shown!r})"

    @property
    def prefixes_topic(self) -> str:
        """The topic that records each prefix's owner; a team may have its own."""
        return str(self.get(_PREFIXES_TOPIC, DEFAULT_TOPIC))

    def files(self) -> tuple[bytes | None, ...]:
        """Return what the TLS files have in them now: another value where one was renewed.

        None for a file that is not given, or cannot be read.
        """
        return tuple(map(_content, (self.get(key) for key in _TLS_FILES)))

    def config(self) -> dict[str, Any]:
        """Return the configuration from which :meth:`from_librdkafka` makes equal settings."""
        return dict(self.items)

    def librdkafka(self) -> dict[str, Any]:
        """Return the settings for confluent-kafka; no client made of them creates topics by asking.

        Producers would otherwise, and an ``AdminClient`` is one: on a broker with
        ``auto.create.topics.enable`` (Kafka's default), looking for a topic would create it, with
        the broker's defaults.

        Raises:
            ConfigurationError: librdkafka does not know a setting, or cannot use its value.
        """
        return {**_understood(self), "allow.auto.create.topics": False}

    def kafka_python(self) -> dict[str, Any]:
        """Return the options for kafka-python's connection manager.

        Raises:
            ConfigurationError: a certificate cannot be loaded, or is given in a form that
                kafka-python cannot use.
        """
        config = dict(self.items)
        options: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap_servers.split(","),
            "security_protocol": self.security_protocol,
        }
        for name, ours in _PLAIN_NUMBERS.items():
            if name in config:
                options[ours] = _milliseconds(name, config[name])
        if "client.id" in config:
            options["client_id"] = str(config["client.id"])
        if config.get("client.dns.lookup"):
            options["client_dns_lookup"] = config["client.dns.lookup"]
        if self.security_protocol.endswith("SSL"):
            options["ssl_context"] = context(config)
        if self.security_protocol.startswith("SASL"):
            options["sasl_mechanism"] = self.sasl_mechanism
            if self.sasl_mechanism in _WITH_PASSWORD:
                options["sasl_plain_username"] = str(config["sasl.username"])
                options["sasl_plain_password"] = str(config["sasl.password"])
            elif self.sasl_mechanism == "OAUTHBEARER":
                options["sasl_oauth_token_provider"] = token_provider(config)
            else:
                service = config.get("sasl.kerberos.service.name", "kafka")
                options["sasl_kerberos_service_name"] = service
        return options

    def spark_options(self) -> dict[str, str]:
        """Return the options for Spark's Kafka source and sink, each with the prefix ``kafka.``.

        Certificates stay file names, so the files must lie at the same place on every executor.
        With OAUTHBEARER, Java must also be told that it may ask the token endpoint:
        ``-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=…`` on driver and executors (KIP-1139).

        Raises:
            ConfigurationError: the Java client has no counterpart of a setting.
        """
        config = dict(self.items)
        options = {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "kafka.allow.auto.create.topics": "false",  # else a consumer would create topics
        }
        if self.security_protocol != "PLAINTEXT":
            options["kafka.security.protocol"] = self.security_protocol
        if self.security_protocol.endswith("SSL"):
            options |= tls_options(config)
        if self.security_protocol.startswith("SASL"):
            options |= sasl_options(config, self.sasl_mechanism)
        return options


def _milliseconds(name: str, value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise ConfigurationError(f"{name}={value!r} is not a number of milliseconds.") from None
