"""The checkpoint policy: what it refuses, and where it meets other arguments."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_eos.delivery.batch_timeout import check_policy, chosen_trigger
from airflow_eos.delivery.policy import CheckpointPolicy, ExponentialDelay, FixedDelay
from airflow_eos.errors import ConfigurationError

SECOND = timedelta(seconds=1)
ARGUMENTS: dict[str, Any] = {
    "trigger_interval": SECOND,
    "max_restarts": 3,
    "restart_delay": 10 * SECOND,
}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"interval": timedelta(0)}, "interval="),
        ({"timeout": -SECOND}, "timeout"),
        ({"min_pause": -SECOND}, "min_pause"),
        ({"num_retained": 1}, "num_retained 1"),
    ],
)
def test_what_cannot_work_is_refused(fields, words):
    with pytest.raises(ConfigurationError, match=words):
        CheckpointPolicy(**fields)


def test_the_interval_is_sparks_trigger():
    policy = CheckpointPolicy(interval=timedelta(minutes=1))
    assert chosen_trigger(None, policy) == {"processingTime": "60000 milliseconds"}
    assert chosen_trigger(None, CheckpointPolicy()) == {"processingTime": "1 second"}
    ends = {"availableNow": True}
    assert chosen_trigger(ends, CheckpointPolicy(timeout=SECOND)) == ends


def test_an_interval_said_twice_is_refused():
    with pytest.raises(ConfigurationError, match="leave one of them out"):
        chosen_trigger({"processingTime": "1 second"}, CheckpointPolicy(interval=SECOND))


def test_at_most_once_loses_what_a_timeout_ends():
    late = CheckpointPolicy(timeout=SECOND)
    with pytest.raises(ConfigurationError, match="at_most_once"):
        check_policy(late, "at_most_once")
    check_policy(late, "at_least_once")
    check_policy(CheckpointPolicy(), "at_most_once")


def test_an_operators_own_arguments_say_the_same_shorter():
    given: dict[str, Any] = {
        "trigger_interval": 5 * SECOND,
        "max_restarts": 7,
        "restart_delay": SECOND,
    }
    assert CheckpointPolicy().beside(**given) == (5 * SECOND, FixedDelay(7, SECOND))
    said = CheckpointPolicy(interval=9 * SECOND, restart=ExponentialDelay())
    assert said.beside(**ARGUMENTS) == (9 * SECOND, ExponentialDelay())


@pytest.mark.parametrize(
    ("said", "argument"),
    [
        (CheckpointPolicy(interval=9 * SECOND), {"trigger_interval": 2 * SECOND}),
        (CheckpointPolicy(restart=ExponentialDelay()), {"max_restarts": 4}),
        (CheckpointPolicy(restart=ExponentialDelay()), {"restart_delay": SECOND}),
    ],
)
def test_the_same_said_in_two_ways_is_refused(said, argument):
    with pytest.raises(ConfigurationError, match="say the same thing"):
        said.beside(**ARGUMENTS | argument)
