"""What concerns the checkpoint's policy on the way to an app: environment, then arguments."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from datetime import timedelta

from airflow_eos.arguments import milliseconds, taken
from airflow_eos.sinks.policy import CheckpointPolicy

_MIN_PAUSE = "EOS_MIN_PAUSE_MS"
_TIMEOUT = "EOS_BATCH_TIMEOUT_MS"
_RETAINED = "EOS_NUM_RETAINED"


def policy_environment(policy: CheckpointPolicy) -> dict[str, str]:
    """The variables that tell an app; its interval travels with the times of a transaction."""
    told: dict[str, str] = {}
    if policy.min_pause:
        told[_MIN_PAUSE] = str(milliseconds(policy.min_pause))
    if policy.timeout is not None:
        told[_TIMEOUT] = str(milliseconds(policy.timeout))
    if policy.num_retained is not None:
        told[_RETAINED] = str(policy.num_retained)
    return told


def add_policy_arguments(
    parser: argparse.ArgumentParser, env: Mapping[str, str] = os.environ
) -> None:
    """``--min-pause``, ``--batch-timeout`` and ``--num-retained``; see ``CheckpointPolicy``."""
    parser.add_argument(
        "--min-pause", default=_interval(env.get(_MIN_PAUSE)), help="from a batch to the next one"
    )
    parser.add_argument(
        "--batch-timeout",
        default=_interval(env.get(_TIMEOUT)),
        help="a batch whose tasks take longer fails; as long as they like if not given",
    )
    parser.add_argument(
        "--num-retained", type=int, default=env.get(_RETAINED), help="batches that logs go back"
    )


def policy_of(args: argparse.Namespace) -> CheckpointPolicy:
    """The policy that the arguments tell; ``--trigger`` is Spark's trigger, and not in it.

    Raises:
        ConfigurationError: a time cannot be read, or cannot work.
    """
    timeout = args.batch_timeout
    return CheckpointPolicy(
        min_pause=timedelta(0) if args.min_pause is None else taken("min_pause", args.min_pause),
        timeout=None if timeout is None else taken("batch_timeout", timeout),
        num_retained=args.num_retained,
    )


def _interval(told_ms: str | None) -> str | None:
    return None if told_ms is None else f"{told_ms} milliseconds"
