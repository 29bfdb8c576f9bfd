"""Where a Kafka cluster is and how to log in, said once and translated for each client.

The form is librdkafka's, because that is what Airflow's ``kafka`` connection holds in its
``extra``. Three clients read it: librdkafka itself, kafka-python (transactions, writing) and the
Java client inside Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from airflow_eos.errors import ConfigurationError
from airflow_eos.kafka.client import java_options, tls
from airflow_eos.kafka.client.oauth import token_provider
from airflow_eos.secret_names import is_secret

if TYPE_CHECKING:
    from collections.abc import Mapping

_ALIASES = {
    "metadata.broker.list": "bootstrap.servers",
    "sasl.mechanism": "sasl.mechanisms",  # librdkafka knows both names for the same thing
}
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
_WITH_PASSWORD = _MECHANISMS[:3]
_PLAIN_NUMBERS = {  # librdkafka's name → kafka-python's, both in milliseconds
    "socket.timeout.ms": "request_timeout_ms",
    "socket.connection.setup.timeout.ms": "socket_connection_setup_timeout_ms",
    "reconnect.backoff.ms": "reconnect_backoff_ms",
    "reconnect.backoff.max.ms": "reconnect_backoff_max_ms",
    "metadata.max.age.ms": "metadata_max_age_ms",
}


@dataclass(frozen=True, slots=True, repr=False)
class KafkaSettings:
    """One cluster's settings: hashable, picklable (it travels to executors), secrets not shown.

    Make one with :meth:`from_librdkafka`. Keys that only librdkafka understands are kept for it.
    """

    items: tuple[tuple[str, Any], ...]

    @classmethod
    def from_librdkafka(cls, config: Mapping[str, Any]) -> Self:
        """Check and keep a librdkafka-style configuration.

        Raises:
            ConfigurationError: no ``bootstrap.servers``, or a protocol, mechanism or credential
                that cannot work. No message shows a secret.
        """
        known = {_ALIASES.get(k, k): v for k, v in config.items() if v is not None}
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
        config = dict(self.items)
        _one_of(config, "security.protocol", _PROTOCOLS, self.security_protocol)
        if self.security_protocol.endswith("SSL"):
            tls.tell_what_is_not_verified(config)
        if not self.security_protocol.startswith("SASL"):
            return
        _one_of(config, "sasl.mechanisms", _MECHANISMS, self.sasl_mechanism)
        if self.sasl_mechanism in _WITH_PASSWORD:
            for key in ("sasl.username", "sasl.password"):
                if not config.get(key):
                    raise ConfigurationError(
                        f"sasl.mechanism={self.sasl_mechanism} needs {key}, which is not given."
                    )

    def get(self, key: str, default: Any = None) -> Any:
        """The value under librdkafka's name of a setting."""
        return dict(self.items).get(_ALIASES.get(key, key), default)

    @property
    def bootstrap_servers(self) -> str:
        """``host:port``, comma separated."""
        return str(self.get("bootstrap.servers"))

    @property
    def security_protocol(self) -> str:
        """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
        return str(self.get("security.protocol", "PLAINTEXT")).upper()

    @property
    def sasl_mechanism(self) -> str:
        """The SASL mechanism; librdkafka's default is GSSAPI."""
        return str(self.get("sasl.mechanisms", "GSSAPI")).upper()

    def __repr__(self) -> str:
        shown = {k: "***" if is_secret(k) else v for k, v in self.items}
        return f"KafkaSettings({shown!r})"

    def librdkafka(self) -> dict[str, Any]:
        """For confluent-kafka; whatever the client, it makes no topic by asking for it.

        A producer's handle does else, and an ``AdminClient`` is one: on a broker with
        ``auto.create.topics.enable``, Kafka's default, a topic that is only looked for would be
        made, with the broker's defaults.
        """
        return {**dict(self.items), "allow.auto.create.topics": False}

    def kafka_python(self) -> dict[str, Any]:
        """For kafka-python's connection manager.

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
            options["ssl_context"] = tls.context(config)
        if self.security_protocol.startswith("SASL"):
            options |= self._sasl_for_python(config)
        return options

    def _sasl_for_python(self, config: dict[str, Any]) -> dict[str, Any]:
        mechanism = self.sasl_mechanism
        options: dict[str, Any] = {"sasl_mechanism": mechanism}
        if mechanism in _WITH_PASSWORD:
            options["sasl_plain_username"] = str(config["sasl.username"])
            options["sasl_plain_password"] = str(config["sasl.password"])
        elif mechanism == "OAUTHBEARER":
            options["sasl_oauth_token_provider"] = token_provider(config)
        else:
            options["sasl_kerberos_service_name"] = config.get(
                "sasl.kerberos.service.name", "kafka"
            )
        return options

    def spark_options(self) -> dict[str, str]:
        """Options for Spark's Kafka source and sink, each with the prefix ``kafka.``.

        Certificates stay file names, so the files must lie at the same place on every executor.
        With OAUTHBEARER, Java must also be told that it may ask the token endpoint:
        ``-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=…`` on driver and executors (KIP-1139).

        Raises:
            ConfigurationError: the Java client has no way to do what is asked.
        """
        config = dict(self.items)
        options = {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "kafka.allow.auto.create.topics": "false",  # a consumer that looks makes no topic
        }
        if self.security_protocol != "PLAINTEXT":
            options["kafka.security.protocol"] = self.security_protocol
        if self.security_protocol.endswith("SSL"):
            options |= java_options.tls_options(
                config, verify=tls.verifies(config), check_host=tls.checks_host(config)
            )
        if self.security_protocol.startswith("SASL"):
            options |= java_options.sasl_options(config, self.sasl_mechanism)
        return options


def _one_of(config: Mapping[str, Any], key: str, allowed: tuple[str, ...], value: str) -> None:
    if value not in allowed:
        raise ConfigurationError(
            f"{key}={config.get(key)!r} is not known; expected one of {', '.join(allowed)}."
        )


def _milliseconds(name: str, value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise ConfigurationError(f"{name}={value!r} is not a number of milliseconds.") from None
