"""A streaming app of its settings: an app is only its transformation.

Every setting (:mod:`airflow_eos.core.settings`) is an argument. Where it is not given, it comes
from the environment that ``SparkStreamingOperator`` prepares, so the same script runs from a shell
and from Airflow.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos.core.arguments import Flag, spelled
from airflow_eos.core.delivery.causes import cause_of
from airflow_eos.core.delivery.configured import OutputConfig
from airflow_eos.core.delivery.options import AppFacts
from airflow_eos.core.delivery.outputs import Output
from airflow_eos.core.delivery.policy import CheckpointPolicy
from airflow_eos.core.delivery.start_position import StartPosition
from airflow_eos.core.protocol.decision import Guarantee
from airflow_eos.core.settings import READ_ONCE, SECRET_FILES, SETTINGS, AppSettings
from airflow_eos.errors import REFUSED_STATUS, ConfigurationError, EosError, exit_status
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.sink import KafkaSink, kafka_sink
from airflow_eos.kinds.consumer_group.sink import ConsumerGroup
from airflow_eos.sinks.source import tuned_source_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_eos.core.delivery.query import ExactlyOnceQuery
    from airflow_eos.core.delivery.source import OwnSource


def kafka_config(bootstrap_servers: str | None) -> dict[str, Any]:
    """Return librdkafka's configuration of the cluster that is read from.

    Raises:
        ConfigurationError: no cluster is named.
    """
    config = from_environment(SECRET_FILES["kafka"])
    if bootstrap_servers is not None:
        return {**config, "bootstrap.servers": bootstrap_servers}
    if not config:
        raise ConfigurationError(
            f"No Kafka cluster is named: give {SETTINGS['bootstrap_servers'].flag}, or let "
            f"{SECRET_FILES['kafka']} name a JSON file with a librdkafka configuration (readable "
            "by you only)."
        )
    return config


def outputs_text(told: str | None) -> str | None:
    """Return the outputs' JSON text, also where ``told`` names its file."""
    if told is None or told.lstrip().startswith(("[", "{")):
        return told
    try:
        return Path(told).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{SETTINGS['outputs'].flag} {told!r} is no JSON list, and no file that can be read: "
            f"{error}"
        ) from error


def from_environment(variable: str) -> dict[str, Any]:
    """Return the JSON object in the file that an environment variable names; {} where none does."""
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
    if _is_read_once(variable):  # written for this start; a user's own file is left alone
        target = path.resolve()
        path.unlink(missing_ok=True)
        with suppress(OSError):  # YARN's own copy, which it may not let us touch
            target.unlink(missing_ok=True)
    return told


def _is_read_once(variable: str) -> bool:
    """Whether the file that the variable names goes once it is read; ``1`` says so of all."""
    told = os.environ.get(READ_ONCE, "")
    return told in {"1", "true"} or variable in told.split(",")


def group_of(settings: AppSettings, kafka: KafkaSettings) -> ConsumerGroup | None:
    """Return the consumer group that the settings name, in the cluster that the app reads from.

    Raises:
        ConfigurationError: the app is to go on from a group that is not named.
    """
    group, resume = settings.consumer_group, settings.resume_from_group
    if group is None:
        if resume:
            asked, lacks = SETTINGS["resume_from_group"].flag, SETTINGS["consumer_group"].flag
            raise ConfigurationError(f"{asked}: which one? Give {lacks}, too.")
        return None
    return ConsumerGroup(group, kafka.bootstrap_servers, kafka.config(), resume=resume)


def argument_parser(description: str, *, prefix: str) -> argparse.ArgumentParser:
    """Return a parser with what every app needs; add the topics of your own.

    Raises:
        ConfigurationError: the environment has a word for a flag that is neither true nor false.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for name, setting in SETTINGS.items():
        told = setting.from_environment(os.environ)
        default = prefix if name == "transactional_id_prefix" else setting.default
        more: dict[str, Any] = {"default": default if told is None else told, "help": setting.text}
        if isinstance(setting.argument.type, Flag):
            more["action"] = "store_true"
        elif more["default"] is None:
            more["required"] = not setting.argument.may_be_none
        parser.add_argument(setting.flag, **more)
    return parser


@dataclass(frozen=True, slots=True)
class App:
    """The settings of one streaming app; make it with :meth:`of`, once.

    ``storage_options`` open the checkpoint's object store for ``start_exactly_once``. They come
    from the operator's ``storage_conn_id``; elsewhere the environment decides. ``reach`` tells how
    to reach databases, by the name that the operator's ``participant_conn_ids`` gives them.
    ``outputs`` are where configuration sends the rows, in place of the app's own topic.
    """

    facts: AppFacts
    checkpoint: str
    trigger: Mapping[str, Any]
    source_options: Mapping[str, str] = field(default_factory=dict)
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    reach: Mapping[str, Any] = field(default_factory=dict, repr=False)
    guarantee: Guarantee = "exactly_once"
    outputs: tuple[Output, ...] = ()
    consumer_group: ConsumerGroup | None = None
    policy: CheckpointPolicy = field(default_factory=CheckpointPolicy)
    first_start: StartPosition = field(default_factory=StartPosition.earliest)
    standby: bool = False

    @classmethod
    def of(cls, args: argparse.Namespace) -> App:
        """Return the settings from parsed arguments.

        The files that the operator wrote for this start hold secrets: they are removed here.

        Raises:
            ConfigurationError: no Kafka is named, a time cannot be read, or the guarantee or an
                output cannot work.
        """
        return cls.of_settings(AppSettings.of_arguments(args))

    @classmethod
    def of_settings(cls, given: AppSettings) -> App:
        """Return the app of these settings; see :meth:`of`."""
        choice = OutputConfig.of(given.guarantee, outputs_text(given.outputs))
        facts = AppFacts(
            kafka=KafkaSettings.from_librdkafka(kafka_config(given.bootstrap_servers)),
            prefix=given.transactional_id_prefix,
            transaction_timeout=given.transaction_timeout,
            batch_within=given.batch_within,
            recover_within=given.recover_within,
        )
        reach = from_environment(SECRET_FILES["participants"])
        limit, interval = given.max_offsets_per_trigger, given.trigger_interval
        return cls(
            facts,
            checkpoint=given.checkpoint_location,
            trigger=(
                {"availableNow": True}
                if isinstance(interval, str)
                else {"processingTime": spelled(interval)}
            ),
            source_options={
                **({} if limit is None else {"maxOffsetsPerTrigger": str(limit)}),
                **({"failOnDataLoss": "false"} if given.skip_lost_input else {}),
            },
            storage_options=from_environment(SECRET_FILES["storage"]),
            reach=reach,
            guarantee=choice.guarantee,
            outputs=choice.outputs(facts, reach),
            consumer_group=group_of(given, facts.kafka),
            policy=CheckpointPolicy(
                min_pause=given.min_pause,
                timeout=given.batch_timeout,
                num_retained=given.num_retained,
            ),
            first_start=StartPosition.parsed(given.start),
            standby=given.standby,
        )

    def read(
        self, spark: SparkSession, topic: str, start: StartPosition | None = None
    ) -> DataFrame:
        """Return the rows of a Kafka topic; committed rows only.

        Args:
            spark: the session.
            topic: one topic.
            start: where the first start begins; None: what the settings say, by default at the
                earliest row, or where the consumer group is (``resume_from_group``). A
                checkpoint, once there is one, decides instead.
        """
        group = self.consumer_group
        if start is None and group is not None and group.resume:
            begin = {"startingOffsets": group.starting_offsets(topic)}
        else:
            begin = (start or self.first_start).source_options(topic)
        return (
            spark.readStream.format("kafka")
            .options(**self.kafka.spark_options(), **tuned_source_options(), **self.source_options)
            # Without this, rows of an aborted transaction would be read like all others.
            .option("kafka.isolation.level", "read_committed")
            .options(**begin)
            .option("includeHeaders", "true")
            .option("subscribe", topic)
            .load()
        )

    @property
    def kafka(self) -> KafkaSettings:
        """The connection to the cluster that is read from."""
        settings: KafkaSettings = self.facts.kafka
        return settings

    @property
    def prefix(self) -> str:
        """The prefix of the transactional ids; owned by one checkpoint."""
        return self.facts.prefix

    def sink(self, topic: str) -> KafkaSink:
        """Return the sink that delivers to ``topic`` where a row names no topic of its own.

        Raises:
            ConfigurationError: configuration sends the rows elsewhere, which would go unheard.
        """
        if self.outputs:
            names = ", ".join(each.name for each in self.outputs)
            raise ConfigurationError(
                f"The outputs {names} were chosen for this app, and it asks for a sink to topic "
                f"{topic}: let it deliver with app.start(…), or take the outputs away."
            )
        return kafka_sink(self.kafka, self.facts, topic=topic)

    def start(
        self,
        df: DataFrame | OwnSource,
        *,
        topic: str,
        query_name: str,
        output_mode: str = "append",
    ) -> ExactlyOnceQuery:
        """Deliver ``df`` with the guarantee that was chosen; see ``start_exactly_once``.

        Args:
            df: a streaming DataFrame, with the columns that a topic takes; or an
                :class:`~airflow_eos.sources.ArrowKafkaSource`.
            topic: the topic of the rows, where no outputs were chosen.
            query_name: Spark's query name.
            output_mode: Spark's output mode.
        """
        from airflow_eos.core.delivery.start import start_exactly_once

        return start_exactly_once(
            df,
            self.outputs or self.sink(topic),
            checkpoint_location=self.checkpoint,
            trigger=self.trigger,
            output_mode=output_mode,
            query_name=query_name,
            guarantee=self.guarantee,
            storage_options=self.storage_options,
            consumer_group=self.consumer_group,
            policy=self.policy,
            standby=self.standby,
        )


def run_app(main: Callable[[], None]) -> None:
    """Run ``main``; an error that the package raises becomes one line and exit status 1, 78 or 0.

    78: no restart can heal the error (one of Spark's, too), so the operator does not try. 0: the
    start was called off.
    """
    try:
        main()
    except EosError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.exit(exit_status(error))
    except Exception as error:
        cause = cause_of(error)
        if cause.restart_heals is not False:
            raise
        traceback.print_exc()
        sys.stderr.write(f"No restart heals it. {cause}\n")
        sys.exit(REFUSED_STATUS)
