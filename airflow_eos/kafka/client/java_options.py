"""librdkafka's TLS and SASL settings as options of the Java client inside Spark."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import ConfigurationError
from airflow_eos.kafka.client.tls import converted, key_text

if TYPE_CHECKING:
    from collections.abc import Mapping

_MODULE = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
    "GSSAPI": "com.sun.security.auth.module.Krb5LoginModule",
}
_OAUTH_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"


def tls_options(config: Mapping[str, Any], *, verify: bool, check_host: bool) -> dict[str, str]:
    """Trust and key stores in PEM (KIP-651).

    A key and its certificate in two files go inline, because Java's PEM key store is one file.
    Set ``spark.redaction.regex`` to ``secret_names.spark_redaction_regex()`` then: Spark's UI may
    show the key otherwise.

    Raises:
        ConfigurationError: Java cannot leave certificates unverified, or a file is not readable.
    """
    if not verify:
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
    if not check_host:
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
    """Refuse a client's key that Java cannot read, though librdkafka and Python do.

    Java reads PKCS#8 in PEM; what PBES2 has encrypted only from Java 19 on (JDK-8076999).

    Args:
        config: librdkafka's settings.
        java: its version, where that is known.

    Raises:
        ConfigurationError: with the command that converts it.
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
        return  # as Java reads it, or nothing that is known here: then Java says it
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
    """``sasl.jaas.config`` and what goes with it (KIP-85, KIP-768)."""
    options = {"kafka.sasl.mechanism": mechanism}
    if mechanism == "OAUTHBEARER":
        arguments = {
            "clientId": config.get("sasl.oauthbearer.client.id"),
            "clientSecret": config.get("sasl.oauthbearer.client.secret"),
            "scope": config.get("sasl.oauthbearer.scope"),
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
    given = " ".join(f"{k}={_quoted(v)}" for k, v in arguments.items() if v is not None)
    options["kafka.sasl.jaas.config"] = f"{_MODULE[mechanism]} required {given};"
    return options


def _quoted(value: object) -> str:
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
