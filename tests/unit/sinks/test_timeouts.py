"""The timeout chain and the trigger, refused with the figures in the message."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_eos.delivery.spark_session import trigger_interval
from airflow_eos.errors import ConfigurationError, TimeoutBudgetError
from airflow_eos.kinds.kafka.preflight import check_timeouts, longest_timeout
from tests.support.capable import capable

S = timedelta(seconds=1)


def check(
    timeout: int, *, trigger: int = 10, batch: int = 60, recovery: int = 300, most: int = 900
):
    check_timeouts(
        timeout=timeout * S,
        trigger=trigger * S,
        batch=batch * S,
        recovery=recovery * S,
        broker_max=most * S,
    )


def test_a_timeout_that_covers_all_three_is_accepted():
    check(370)
    check(900)


def test_a_timeout_above_the_brokers_maximum_is_refused_as_flinks_default_hour_is():
    with pytest.raises(TimeoutBudgetError, match=r"3600 s, above .* of 900 s"):
        check(3600)


def test_a_timeout_below_the_sum_is_refused_with_the_three_numbers():
    with pytest.raises(TimeoutBudgetError, match=r"10 s .* 60 s .* 300 s = 370 s"):
        check(369)


@pytest.mark.parametrize(
    ("trigger", "seconds"),
    [
        ({"processingTime": "10 seconds"}, 10),
        ({"processingTime": "500 milliseconds"}, 0.5),
        ({"processingTime": "interval 1 minute 30 seconds"}, 90),
        ({"processingTime": "0 seconds"}, 0),
        ({"availableNow": True}, 0),
    ],
)
def test_trigger_intervals(trigger, seconds):
    assert trigger_interval(trigger).total_seconds() == seconds


@pytest.mark.parametrize(
    "trigger",
    [
        {"continuous": "1 second"},
        {"once": True},
        {"processingTime": "soon"},
        {"processingTime": "3 fortnights"},
        {"availableNow": False},
        {},
        {"processingTime": "1 second", "availableNow": True},
    ],
)
def test_triggers_without_batches_or_meaning_are_refused(trigger):
    with pytest.raises(ConfigurationError, match="trigger"):
        trigger_interval(trigger)


@pytest.mark.parametrize(
    ("trigger", "named"),
    [({"realTime": "5 seconds"}, "Real-time mode"), ({"continuous": "1 second"}, "Continuous")],
)
def test_a_trigger_of_spark_that_has_no_whole_batches_is_refused_by_its_own_name(trigger, named):
    with pytest.raises(ConfigurationError, match=named):
        trigger_interval(trigger)


@pytest.mark.parametrize("told", [{}, {"transaction.max.timeout.ms": "900000"}])
def test_a_broker_that_does_not_tell_its_longest_timeout_is_not_taken_for_one_that_refuses(told):
    """Redpanda and MSK Serverless do not: the first transaction shows what it takes."""
    wire: Any = SimpleNamespace(
        cluster=SimpleNamespace(capabilities=lambda: capable(settings=told))
    )
    longest = longest_timeout(wire)
    assert longest == (timedelta(minutes=15) if told else None)
    chain = {"trigger": timedelta(0), "batch": timedelta(0), "recovery": timedelta(0)}
    check_timeouts(timeout=timedelta(minutes=10), **chain, broker_max=longest)
