"""``kafka``: see :class:`~airflow_eos.kinds.kafka.sink.KafkaSink`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_eos.delivery.options import AppFacts, SinkOptions, unreached
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.writers import Producer
from airflow_eos.kinds.kafka.sink import KafkaSink


class KafkaOptions(SinkOptions, frozen=True):
    """A topic; of the app's own cluster where nothing tells of another one."""

    topic: str | None = None
    transactional_id_prefix: str | None = None
    compression: str | None = None
    producer: Producer | None = None

    def sink(self, name: str, app: AppFacts, how: Any) -> KafkaSink:
        """See :meth:`SinkOptions.sink`."""
        return kafka_sink(_settings(app, how), app, **{"name": name, "topic": None, **self.given()})


def kafka_sink(settings: KafkaSettings, app: AppFacts, **given: Any) -> KafkaSink:
    """The sink that delivers within the app's times; under its prefix where no other is given."""
    return KafkaSink(
        **{
            "bootstrap_servers": settings.bootstrap_servers,
            "transactional_id_prefix": app.prefix,
            "transaction_timeout": app.transaction_timeout,
            "batch_within": app.batch_within,
            "recover_within": app.recover_within,
            "kafka_config": settings.config(),
            **given,
        }
    )


def _settings(app: AppFacts, how: Any) -> KafkaSettings:
    if how is None:
        return app.kafka
    if not isinstance(how, Mapping):
        raise unreached("a librdkafka configuration, as a Kafka connection's extra has it")
    return KafkaSettings.from_librdkafka(how)


OPTIONS = KafkaOptions
