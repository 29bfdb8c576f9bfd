"""Airflow's own ``kafka`` connection as the settings object of the core."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.log import mask_secret

from airflow_eos.errors import ConfigurationError
from airflow_eos.secret_names import is_secret

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_eos.kafka.client.settings import KafkaSettings

_CALLBACK_NAMES = re.compile(r"_cb$|^on_commit$")


class KafkaSettingsHook(BaseHook):
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
        """Return the connection's configuration, its secrets already masked in every log.

        Raises:
            ConfigurationError: no ``bootstrap.servers``, or a callback that cannot travel.
        """
        return self._checked(self.get_connection(self.kafka_config_id))

    def settings(self) -> KafkaSettings:
        """Return the settings that every client of the core is made from."""
        from airflow_eos.kafka.client.settings import (
            KafkaSettings,  # pulls clients in: not at parse time
        )

        return KafkaSettings.from_librdkafka(self.librdkafka())

    async def asettings(self) -> KafkaSettings:
        """Return :meth:`settings` inside a trigger, whose event loop may not be blocked."""
        from airflow_eos.kafka.client.settings import KafkaSettings

        connection = await self.aget_connection(self.kafka_config_id)
        return KafkaSettings.from_librdkafka(self._checked(connection))

    def get_conn(self) -> KafkaSettings:
        """Return :meth:`settings`: there is no long-lived client to hand out."""
        return self.settings()

    def _checked(self, connection: Connection) -> dict[str, Any]:
        """The configuration, checked; whichever way it was read, its secrets are masked first."""
        config: dict[str, Any] = connection.extra_dejson
        _mask_secrets(config)
        _quiet_client_logs()
        where = f"Kafka connection {self.kafka_config_id!r}"
        if not config.get("bootstrap.servers"):
            raise ConfigurationError(
                f"{where}: its extra has no 'bootstrap.servers'. Put the librdkafka configuration "
                'into the extra, for example {"bootstrap.servers": "kafka-1:9092"}.'
            )
        callbacks = sorted(name for name in config if _CALLBACK_NAMES.search(name))
        if callbacks:
            raise ConfigurationError(
                f"{where}: {', '.join(callbacks)} cannot be sent to Spark's processes, which read "
                "plain values only. Use a connection without callbacks (SASL password, SCRAM, TLS)."
            )
        return config


def _mask_secrets(config: dict[str, Any]) -> None:
    """Airflow's masker knows "password" and "secret"; clients also keep keys and JAAS lines."""
    for name, value in config.items():
        if is_secret(name) and isinstance(value, str) and value:
            mask_secret(value)


def _quiet_client_logs() -> None:
    """Keep kafka-python's dozen lines a connection out of task logs, unless somebody wants them.

    A level that was set on purpose (``[logging] namespace_levels = kafka=INFO``) stays.
    """
    client = logging.getLogger("kafka")
    if client.level == logging.NOTSET:
        client.setLevel(logging.WARNING)
