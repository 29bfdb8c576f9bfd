"""librdkafka's TLS settings: what is verified, and the context for clients written in Python."""

from __future__ import annotations

import ssl
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import ConfigurationError, Remedy

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


def key_text(config: Mapping[str, Any]) -> tuple[str, str] | None:
    """Where the client's key is, and its file's text; None where none is given, or readable here.

    A file that is no text is told as what it is by its first letters: empty.
    """
    location = config.get("ssl.key.location") or config.get("ssl.certificate.location")
    try:
        return None if not location else (str(location), Path(str(location)).read_text())
    except UnicodeDecodeError:
        return str(location), ""
    except OSError:
        return None


def converted(location: str, text: str) -> Remedy:
    """What gives a key in the one form that every client reads: PKCS#8, in PEM."""
    form = "" if text else "-inform DER "
    return Remedy(
        commands=(f"openssl pkcs8 -topk8 -nocrypt {form}-in {location} -out {location}.pk8.pem",),
        settings={"ssl.key.location": f"{location}.pk8.pem"},
        start=True,
        costs="the file is not encrypted: let its owner alone read it",
    )


def _of_the_key(config: Mapping[str, Any]) -> tuple[Remedy, ...]:
    """The ways out of a key that cannot be loaded, where its form is the reason."""
    found = key_text(config)
    if found is None:
        return ()
    location, text = found
    if "ENCRYPTED" in text:
        return (Remedy(change="give the key's own password as ssl.key.password", start=True),)
    return () if text else (converted(location, text),)


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
                config.get("ssl.key.password") or "",  # without one, OpenSSL asks the terminal
            )
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigurationError(
            f"The TLS files cannot be used: {error}. Checked ssl.ca.location={authority!r}, "
            f"ssl.certificate.location={config.get('ssl.certificate.location')!r}, "
            f"ssl.key.location={config.get('ssl.key.location')!r} and ssl.key.password.",
            *_of_the_key(config),
        ) from error
    return made
