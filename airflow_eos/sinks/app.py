"""What a streaming app is told by whoever starts it, so that an app is only its transformation.

Every setting is an argument. Where an argument is not given, it comes from the environment that
``SparkStreamingOperator`` prepares, so the same script runs from a shell and from Airflow.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import ConfigurationError, EosError
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.sinks.kafka.sink import KafkaSink
from airflow_eos.sinks.source import tuned_source_options
from airflow_eos.sinks.trigger import parse_interval

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AVAILABLE_NOW = "available-now"
_TIMES = {
    "trigger": ("EOS_TRIGGER_INTERVAL_MS", "1 second", "between two batches, or available-now"),
    "transaction-timeout": ("EOS_TRANSACTION_TIMEOUT_MS", "15 minutes", "of the broker"),
    "batch-within": ("EOS_BATCH_WITHIN_MS", "1 minute", "the longest batch expected"),
    "recover-within": ("EOS_RECOVER_WITHIN_MS", "5 minutes", "after a crash, recovery has run"),
}


def argument_parser(description: str, *, prefix: str) -> argparse.ArgumentParser:
    """A parser with what every app needs; add the topics of your own."""
    env = os.environ
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--bootstrap-servers", help="Kafka, where EOS_KAFKA_CONFIG_FILE names no configuration"
    )
    checkpoint = env.get("EOS_CHECKPOINT_LOCATION")
    parser.add_argument(
        "--checkpoint", default=checkpoint, required=checkpoint is None, help="path or URL"
    )
    parser.add_argument(
        "--prefix",
        default=env.get("EOS_TRANSACTIONAL_ID_PREFIX", prefix),
        help="of the transactional ids; owned by one checkpoint",
    )
    for name, (variable, default, text) in _TIMES.items():
        told = env.get(variable)
        parser.add_argument(
            f"--{name}", default=f"{told} milliseconds" if told else default, help=text
        )
    parser.add_argument(
        "--max-offsets-per-trigger", type=int, help="rows a batch; everything there is if not given"
    )
    return parser


@dataclass(frozen=True, slots=True)
class App:
    """The settings of one streaming app; make it with :meth:`of`, once.

    ``storage_options`` open the checkpoint's object store for ``start_exactly_once``. They come
    from the operator's ``storage_conn_id``; elsewhere the environment decides. ``reach`` says how
    to get to databases, by the name that the operator's ``participant_conn_ids`` gives them.
    """

    kafka: KafkaSettings
    checkpoint: str
    prefix: str
    trigger: Mapping[str, Any]
    transaction_timeout: timedelta
    batch_within: timedelta
    recover_within: timedelta
    source_options: Mapping[str, str] = field(default_factory=dict)
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    reach: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, args: argparse.Namespace) -> App:
        """Settings from parsed arguments.

        The files that the operator wrote for this start hold secrets: they are removed here.

        Raises:
            ConfigurationError: no Kafka is named, or a time cannot be read.
        """
        limit: int | None = args.max_offsets_per_trigger
        return cls(
            kafka=KafkaSettings.from_librdkafka(_kafka_config(args.bootstrap_servers)),
            checkpoint=args.checkpoint,
            prefix=args.prefix,
            trigger=(
                {"availableNow": True}
                if args.trigger == AVAILABLE_NOW
                else {"processingTime": args.trigger}
            ),
            transaction_timeout=parse_interval(args.transaction_timeout),
            batch_within=parse_interval(args.batch_within),
            recover_within=parse_interval(args.recover_within),
            source_options={} if limit is None else {"maxOffsetsPerTrigger": str(limit)},
            storage_options=_told("EOS_STORAGE_OPTIONS_FILE"),
            reach=_told("EOS_PARTICIPANTS_FILE"),
        )

    def read(self, spark: SparkSession, topic: str) -> DataFrame:
        """The rows of a Kafka topic from its beginning; committed rows only.

        A checkpoint, once there is one, decides where reading starts.
        """
        return (
            spark.readStream.format("kafka")
            .options(**self.kafka.spark_options(), **tuned_source_options(), **self.source_options)
            # Without it, rows of an aborted transaction would be read like all others.
            .option("kafka.isolation.level", "read_committed")
            .option("startingOffsets", "earliest")
            .option("includeHeaders", "true")
            .option("subscribe", topic)
            .load()
        )

    def sink(self, topic: str) -> KafkaSink:
        """The sink that delivers to ``topic`` where a row names none of its own."""
        return KafkaSink(
            bootstrap_servers=self.kafka.bootstrap_servers,
            topic=topic,
            transactional_id_prefix=self.prefix,
            transaction_timeout=self.transaction_timeout,
            batch_within=self.batch_within,
            recover_within=self.recover_within,
            kafka_config=self.kafka.librdkafka(),
        )


def run_app(main: Callable[[], None]) -> None:
    """Run ``main``; an error that the package raises becomes one line and exit status 1."""
    try:
        main()
    except EosError as error:
        sys.exit(f"{type(error).__name__}: {error}")


def _kafka_config(bootstrap_servers: str | None) -> dict[str, Any]:
    config = _told("EOS_KAFKA_CONFIG_FILE")
    if bootstrap_servers is not None:
        return {**config, "bootstrap.servers": bootstrap_servers}
    if not config:
        raise ConfigurationError(
            "No Kafka cluster is named: give --bootstrap-servers, or let EOS_KAFKA_CONFIG_FILE "
            "name a JSON file with a librdkafka configuration (readable by you only)."
        )
    return config


def _told(variable: str) -> dict[str, Any]:
    """The JSON object in the file that an environment variable names; empty where none does."""
    name = os.environ.get(variable)
    if name is None:
        return {}
    path = Path(name)
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{variable} names {path}, which cannot be read as JSON: {error}"
        ) from error
    if not isinstance(told, dict):
        raise ConfigurationError(f"{path} holds no JSON object, which {variable} should name.")
    if os.environ.get("EOS_READ_ONCE"):  # written for this start; a file of yours is left alone
        path.unlink(missing_ok=True)
    return told
