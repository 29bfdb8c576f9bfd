"""What concerns the consumer group on the way to an app: environment, then arguments."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_eos.errors import ConfigurationError
from airflow_eos.sinks.consumer_group import ConsumerGroup

if TYPE_CHECKING:
    from airflow_eos.kafka.client.settings import KafkaSettings


def add_group_arguments(
    parser: argparse.ArgumentParser, env: Mapping[str, str] = os.environ
) -> None:
    """``--consumer-group`` and ``--resume-from-group``; see ``ConsumerGroup``."""
    parser.add_argument(
        "--consumer-group",
        default=env.get("EOS_CONSUMER_GROUP"),
        help="gets the offsets of what is settled, where lag tools look; nobody consumes as it",
    )
    parser.add_argument(
        "--resume-from-group",
        action="store_true",
        help="go on from the consumer group where the checkpoint is empty",
    )


def group_of(args: argparse.Namespace, kafka: KafkaSettings) -> ConsumerGroup | None:
    """The group that the arguments name, in the cluster that the app reads from.

    Raises:
        ConfigurationError: to go on from a group that is not named.
    """
    group, resume = args.consumer_group, args.resume_from_group
    if group is None:
        if resume:
            raise ConfigurationError("--resume-from-group: which one? Give --consumer-group, too.")
        return None
    return ConsumerGroup(group, kafka.bootstrap_servers, kafka.librdkafka(), resume=resume)
