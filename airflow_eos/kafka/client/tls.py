"""librdkafka's TLS settings: what is verified, and the context for clients written in Python."""

from __future__ import annotations

import ssl
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

_NOT_FOR_PYTHON = {
    "ssl.certificate.pem": "ssl.certificate.location",
    "ssl.key.pem": "ssl.key.location",
    "ssl.keystore.location": "ssl.certificate.location and ssl.key.location",
    "ssl.engine.location": "ssl.certificate.location and ssl.key.location",
}


def verifies(config: Mapping[str, Any]) -> bool:
    """Whether the broker has to show a certificate of an authority that we trust."""
    value = config.get("enable.ssl.certificate.verification", "true")
    return str(value).strip().lower() not in {"false", "0", "f"}


def checks_host(config: Mapping[str, Any]) -> bool:
    """Whether that certificate has to be the one of the host that was asked for."""
    algorithm = str(config.get("ssl.endpoint.identification.algorithm", "https")).lower()
    return algorithm not in {"none", ""}


def tell_what_is_not_verified(config: Mapping[str, Any]) -> None:
    """Warn once in a process for each setting that lets somebody on the way pose as the broker."""
    if not verifies(config):
        _tell(
            "enable.ssl.certificate.verification=false",
            "whoever is on the way can pose as the broker: give the authority's certificate as "
            "ssl.ca.location instead",
        )
    if not checks_host(config):
        _tell(
            "ssl.endpoint.identification.algorithm=none",
            "whoever has any certificate of the same authority can pose as the broker: use names "
            "that are in the brokers' certificates instead",
        )


@cache
def _tell(setting: str, hint: str) -> None:
    # Not with the module: tasks import it, and have nothing to tell as a rule.
    import structlog

    structlog.get_logger(__name__).warning("tls_not_verified", setting=setting, hint=hint)


def context(config: Mapping[str, Any]) -> ssl.SSLContext:
    """For clients that are written in Python.

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
                config.get("ssl.key.password"),
            )
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigurationError(
            f"The TLS files cannot be used: {error}. Checked ssl.ca.location={authority!r}, "
            f"ssl.certificate.location={config.get('ssl.certificate.location')!r}, "
            f"ssl.key.location={config.get('ssl.key.location')!r} and ssl.key.password."
        ) from error
    return made
