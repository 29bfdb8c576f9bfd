"""librdkafka's TLS and SASL settings as options of the Java client inside Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import ConfigurationError

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
    options = {"kafka.ssl.keystore.type": "PEM"}
    if key and key != chain:
        options["kafka.ssl.keystore.certificate.chain"] = _text(chain)
        options["kafka.ssl.keystore.key"] = _text(key)
    else:
        options["kafka.ssl.keystore.location"] = str(chain)
    if config.get("ssl.key.password"):
        options["kafka.ssl.key.password"] = str(config["ssl.key.password"])
    return options


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
