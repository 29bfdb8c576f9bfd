"""A hook that reads Airflow's own ``kafka`` connection as the core's ``KafkaSettings``."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowOptionalProviderFeatureException

from airflow_eos.errors import ConfigurationError
from airflow_eos.hooks.answers import AnsweredHook
from airflow_eos.hooks.store import extra_of, mask_secrets

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_eos.kafka.client.settings import KafkaSettings

_CALLBACK_NAMES = re.compile(r"_cb$|^on_commit$")


class KafkaSettingsHook(AnsweredHook):
    """Reads a ``kafka`` connection; its whole ``extra`` is a librdkafka configuration.

    Args:
        kafka_config_id: the connection, the same one that the Kafka provider's hooks use.
    """

    conn_name_attr = "kafka_config_id"
    default_conn_name = "kafka_default"
    conn_type = "kafka"
    hook_name = "Apache Kafka"

    def __init__(self, kafka_config_id: str = default_conn_name) -> None:
        super().__init__()
        self.kafka_config_id = kafka_config_id

    def librdkafka(self) -> dict[str, Any]:
        """Return the configuration in a form for Spark, with its secrets masked in every log.

        Raises:
            ConfigurationError: no ``bootstrap.servers``, or a callback, which cannot be sent.
        """
        config = self._checked(self.get_connection(self.kafka_config_id))
        callbacks = sorted(name for name in config if _CALLBACK_NAMES.search(name))
        if callbacks:
            raise ConfigurationError(
                f"Kafka connection {self.kafka_config_id!r}: {', '.join(callbacks)} cannot be sent "
                "to Spark's processes, which read plain values only. Use a connection without "
                "callbacks (SASL password, SCRAM, OIDC client credentials, TLS)."
            )
        return config

    def settings(self) -> KafkaSettings:
        """Return the settings that every client of the core is made from, in this process.

        With the logins that the Kafka provider knows: callbacks that ``[apache_kafka]
        callback_allowlist`` allows, Amazon MSK's IAM, Google's Managed Kafka.

        Raises:
            ConfigurationError: no ``bootstrap.servers``, or a login that the provider refuses.
        """
        return self._settings_of(self.get_connection(self.kafka_config_id))

    async def asettings(self) -> KafkaSettings:
        """Return :meth:`settings` inside a trigger, whose event loop may not be blocked."""
        return self._settings_of(await self.aget_connection(self.kafka_config_id))

    def get_conn(self) -> KafkaSettings:
        """Return :meth:`settings`: there is no long-lived client to hand out."""
        return self.settings()

    def _checked(self, connection: Connection) -> dict[str, Any]:
        """Return the checked configuration of a connection; mask its secrets in logs first."""
        config = extra_of(connection)
        mask_secrets(config)
        _quiet_client_logs()
        if not config.get("bootstrap.servers"):
            raise ConfigurationError(
                f"Kafka connection {self.kafka_config_id!r}: its extra has no 'bootstrap.servers'. "
                "Put the librdkafka configuration into the extra, for example "
                '{"bootstrap.servers": "kafka-1:9092"}.'
            )
        return config

    def _settings_of(self, connection: Connection) -> KafkaSettings:
        # The module imports Kafka clients: not at parse time.
        from airflow_eos.kafka.client.settings import KafkaSettings

        config = self._checked(connection)
        with_login = _resolved(connection) if _needs_the_provider(config) else config
        return KafkaSettings.from_librdkafka(with_login)


def _needs_the_provider(config: dict[str, Any]) -> bool:
    """Whether login tokens come from a function: a named callback, or one of the provider's."""
    mechanism = config.get("sasl.mechanism") or config.get("sasl.mechanisms")
    by_itself = str(config.get("sasl.oauthbearer.method", "")).lower() == "oidc"
    return any(map(_CALLBACK_NAMES.search, config)) or (
        str(mechanism).upper() == "OAUTHBEARER" and not by_itself
    )


def _resolved(connection: Connection) -> dict[str, Any]:
    """Return the configuration as the Kafka provider's own hooks hand it to their clients."""
    from airflow.providers.apache.kafka.hooks.base import KafkaBaseHook  # pulls confluent-kafka in

    class Configuration(KafkaBaseHook):
        """A hook of the provider whose client is the configuration alone."""

        def get_connection(self, conn_id: str) -> Connection:  # type: ignore[override]  # noqa: ARG002
            return connection

        def _get_client(self, config: dict[str, Any]) -> dict[str, Any]:
            return config

    try:
        config: dict[str, Any] = Configuration(connection.conn_id).get_conn  # type: ignore[no-untyped-call]
    except (ValueError, AirflowOptionalProviderFeatureException) as error:
        raise ConfigurationError(f"Kafka connection {connection.conn_id!r}: {error}") from error
    return config


def _quiet_client_logs() -> None:
    """Keep kafka-python's dozen lines a connection out of task logs, unless somebody wants them.

    A level that was set on purpose (``[logging] namespace_levels = kafka=INFO``) stays.
    """
    client = logging.getLogger("kafka")
    if client.level == logging.NOTSET:
        client.setLevel(logging.WARNING)
