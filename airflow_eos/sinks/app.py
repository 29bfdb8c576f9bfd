"""The settings of a streaming app, from its arguments: an app is only its transformation.

Every setting is an argument. Where an argument is not given, it comes from the environment that
``SparkStreamingOperator`` prepares, so the same script runs from a shell and from Airflow.
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
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos.core.arguments import AVAILABLE_NOW, Flag, milliseconds, spelled, taken
from airflow_eos.core.delivery.causes import cause_of
from airflow_eos.core.delivery.configured import OutputConfig
from airflow_eos.core.delivery.options import AppFacts
from airflow_eos.core.delivery.policy import CheckpointPolicy
from airflow_eos.core.delivery.start_position import StartPosition
from airflow_eos.errors import REFUSED_STATUS, ConfigurationError, EosError, exit_status
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.sink import kafka_sink
from airflow_eos.kinds.consumer_group.sink import ConsumerGroup
from airflow_eos.sinks.source import tuned_source_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_eos.core.delivery.outputs import Output
    from airflow_eos.core.delivery.port import Guarantee
    from airflow_eos.core.delivery.query import ExactlyOnceQuery
    from airflow_eos.core.delivery.source import OwnSource
    from airflow_eos.kafka.sink import KafkaSink


def kafka_config(bootstrap_servers: str | None) -> dict[str, Any]:
    """Return librdkafka's configuration of the cluster that is read from.

    Raises:
        ConfigurationError: no cluster is named.
    """
    config = told("EOS_KAFKA_CONFIG_FILE")
    if bootstrap_servers is not None:
        return {**config, "bootstrap.servers": bootstrap_servers}
    if not config:
        raise ConfigurationError(
            "No Kafka cluster is named: give --bootstrap-servers, or let EOS_KAFKA_CONFIG_FILE "
            "name a JSON file with a librdkafka configuration (readable by you only)."
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
            f"--outputs {told!r} is no JSON list, and no file that can be read: {error}"
        ) from error


def told(variable: str) -> dict[str, Any]:
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
    """Whether ``EOS_READ_ONCE`` lists the variable, whose file goes once read; ``1`` lists all."""
    told = os.environ.get("EOS_READ_ONCE", "")
    return told in {"1", "true"} or variable in told.split(",")


def add_group_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--consumer-group`` and ``--resume-from-group``; see ``ConsumerGroup``."""
    parser.add_argument(
        "--consumer-group",
        default=os.environ.get("EOS_CONSUMER_GROUP"),
        help="gets the offsets of what is settled, for lag tools; no consumer may use it",
    )
    parser.add_argument(
        "--resume-from-group",
        action="store_true",
        help="with an empty checkpoint, begin at the offsets of the consumer group",
    )


def group_of(args: argparse.Namespace, kafka: KafkaSettings) -> ConsumerGroup | None:
    """Return the consumer group that the arguments name, in the cluster that the app reads from.

    Raises:
        ConfigurationError: the app is to go on from a group that is not named.
    """
    group, resume = args.consumer_group, args.resume_from_group
    if group is None:
        if resume:
            raise ConfigurationError("--resume-from-group: which one? Give --consumer-group, too.")
        return None
    return ConsumerGroup(group, kafka.bootstrap_servers, kafka.config(), resume=resume)


_MIN_PAUSE = "EOS_MIN_PAUSE_MS"
_TIMEOUT = "EOS_BATCH_TIMEOUT_MS"
_RETAINED = "EOS_NUM_RETAINED"


def policy_environment(policy: CheckpointPolicy) -> dict[str, str]:
    """Return the variables that tell an app its policy; its interval travels with other times."""
    told: dict[str, str] = {}
    if policy.min_pause:
        told[_MIN_PAUSE] = str(milliseconds(policy.min_pause))
    if policy.timeout is not None:
        told[_TIMEOUT] = str(milliseconds(policy.timeout))
    if policy.num_retained is not None:
        told[_RETAINED] = str(policy.num_retained)
    return told


def add_policy_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--min-pause``, ``--batch-timeout`` and ``--num-retained``; see ``CheckpointPolicy``."""
    parser.add_argument(
        "--min-pause", default=_interval(_MIN_PAUSE), help="least pause after a batch"
    )
    parser.add_argument(
        "--batch-timeout",
        default=_interval(_TIMEOUT),
        help="a batch whose tasks take longer fails; no limit if not given",
    )
    parser.add_argument(
        "--num-retained",
        type=int,
        default=os.environ.get(_RETAINED),
        help="how many batches the logs keep",
    )


def policy_of(args: argparse.Namespace) -> CheckpointPolicy:
    """Return the policy that the arguments give, without ``--trigger``, which is Spark's trigger.

    Raises:
        ConfigurationError: a time cannot be read, or cannot work.
    """
    timeout = args.batch_timeout
    return CheckpointPolicy(
        min_pause=timedelta(0) if args.min_pause is None else taken("min_pause", args.min_pause),
        timeout=None if timeout is None else taken("batch_timeout", timeout),
        num_retained=args.num_retained,
    )


def _interval(variable: str) -> str | None:
    told_ms = os.environ.get(variable)
    return f"{told_ms} milliseconds" if told_ms else None


def _flag(variable: str) -> bool:
    """Return a flag's value; False where it is not set, or empty. Other words raise an error."""
    told = os.environ.get(variable)
    return bool(told) and bool(Flag().of(variable, told))


_TIMES = {
    "trigger": (
        "EOS_TRIGGER_INTERVAL_MS",
        "1 second",
        "time between two batches, or available-now",
    ),
    "transaction-timeout": (
        "EOS_TRANSACTION_TIMEOUT_MS",
        "15 minutes",
        "how long a transaction may be open",
    ),
    "batch-within": ("EOS_BATCH_WITHIN_MS", "1 minute", "the longest batch expected"),
    "recover-within": (
        "EOS_RECOVER_WITHIN_MS",
        "5 minutes",
        "from a crash to a recovery that has run",
    ),
}


def argument_parser(description: str, *, prefix: str) -> argparse.ArgumentParser:
    """Return a parser with what every app needs; add the topics of your own."""
    env = os.environ
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--bootstrap-servers",
        help="Kafka's host:port, unless EOS_KAFKA_CONFIG_FILE names a configuration",
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
        parser.add_argument(f"--{name}", default=_interval(variable) or default, help=text)
    parser.add_argument(
        "--max-offsets-per-trigger", type=int, help="most rows of a batch; no limit if not given"
    )
    parser.add_argument(
        "--skip-lost-input",
        action="store_true",
        default=_flag("EOS_SKIP_LOST_INPUT"),
        help="for one start: leave out rows that are gone from the input (failOnDataLoss=false)",
    )
    parser.add_argument(
        "--start",
        default=env.get("EOS_START", "earliest"),
        help="where the first start of a checkpoint begins: earliest, latest, a moment "
        "(2026-11-23T10:00:00Z), or the offset of each partition as JSON",
    )
    parser.add_argument(
        "--guarantee",
        default=env.get("EOS_GUARANTEE", "exactly_once"),
        help="exactly_once, at_least_once or at_most_once",
    )
    parser.add_argument(
        "--outputs",
        default=env.get("EOS_OUTPUTS"),
        help="where rows go instead, as JSON or the path of a file with it; see docs/sinks.md",
    )
    parser.add_argument(
        "--standby",
        action="store_true",
        default=_flag("EOS_STANDBY"),
        help="stand by until the running driver of this checkpoint has ended",
    )
    add_group_arguments(parser)
    add_policy_arguments(parser)
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
        limit: int | None = args.max_offsets_per_trigger
        trigger = taken("trigger", args.trigger)
        choice = OutputConfig.of(taken("guarantee", args.guarantee), outputs_text(args.outputs))
        facts = AppFacts(
            kafka=KafkaSettings.from_librdkafka(kafka_config(args.bootstrap_servers)),
            prefix=args.prefix,
            transaction_timeout=taken("transaction_timeout", args.transaction_timeout),
            batch_within=taken("batch_within", args.batch_within),
            recover_within=taken("recover_within", args.recover_within),
        )
        reach = told("EOS_PARTICIPANTS_FILE")
        return cls(
            facts,
            checkpoint=args.checkpoint,
            trigger=(
                {"availableNow": True}
                if trigger == AVAILABLE_NOW
                else {"processingTime": spelled(trigger)}
            ),
            source_options={
                **({} if limit is None else {"maxOffsetsPerTrigger": str(limit)}),
                **({"failOnDataLoss": "false"} if args.skip_lost_input else {}),
            },
            storage_options=told("EOS_STORAGE_OPTIONS_FILE"),
            reach=reach,
            guarantee=choice.guarantee,
            outputs=choice.outputs(facts, reach),
            consumer_group=group_of(args, facts.kafka),
            policy=policy_of(args),
            first_start=StartPosition.parsed(args.start),
            standby=args.standby,
        )

    def read(
        self, spark: SparkSession, topic: str, start: StartPosition | None = None
    ) -> DataFrame:
        """Return the rows of a Kafka topic; committed rows only.

        Args:
            spark: the session.
            topic: one topic.
            start: where the first start begins; None: what ``--start`` says, by default at the
                earliest row, or where the consumer group is (``--resume-from-group``). A
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
        return self.facts.kafka

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
