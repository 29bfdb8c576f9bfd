"""Restart strategies: tables in Flink's terms, and what holds for every history."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_eos.delivery.policy import ExponentialDelay, Failure, FailureRate, FixedDelay
from airflow_eos.errors import ConfigurationError

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


def history(*lasted: float, pause: float = 0.0) -> list[Failure]:
    """Runs of so many seconds, one after the other."""
    failures, now = [], 0.0
    for seconds in lasted:
        failures.append(Failure(now, now + seconds))
        now += seconds + pause
    return failures


def delays(strategy, *lasted: float) -> list[float | None]:
    """What is said after each failure, in seconds."""
    runs = history(*lasted)
    told = [strategy.delay(runs[: n + 1]) for n in range(len(runs))]
    return [None if each is None else each.total_seconds() for each in told]


def test_fixed_delay_is_never_set_back():
    month = 30 * 24 * 3600.0
    assert delays(FixedDelay(), month, month, month, month) == [10, 10, 10, None]


def test_no_restart():
    assert delays(FixedDelay(attempts=0), 1) == [None]


def test_exponential_delay_grows_up_to_its_maximum():
    strategy = ExponentialDelay(SECOND, 10 * SECOND, multiplier=2)
    assert delays(strategy, *[5.0] * 6) == [1, 2, 4, 8, 10, 10]


def test_exponential_delay_begins_again_after_a_run_that_was_well():
    strategy = ExponentialDelay(SECOND, HOUR, multiplier=3, reset_after=MINUTE)
    assert delays(strategy, 5, 5, 5, 60, 5, 59.9, 5) == [1, 3, 9, 1, 3, 9, 27]


def test_exponential_delay_counts_attempts_since_it_began_again():
    strategy = ExponentialDelay(SECOND, HOUR, multiplier=2, reset_after=MINUTE, attempts=2)
    assert delays(strategy, 5, 5, 100, 5, 5) == [1, 2, 1, 2, None]


def test_failure_rate_forgets_what_was_long_ago():
    strategy = FailureRate(failures=2, within=MINUTE, pause=SECOND)
    assert delays(strategy, 10, 10, 51, 51, 51) == [1, 1, 1, 1, 1]
    assert delays(strategy, 10, 10, 10) == [1, 1, None]
    assert delays(strategy, 600, 30, 30) == [1, 1, None], "the span is closed at both ends"


RUNS = st.lists(st.floats(0, 10_000), min_size=1, max_size=40).map(lambda runs: history(*runs))


@settings(deadline=None)  # a busy machine
@given(RUNS, st.integers(0, 5), st.floats(1, 4), st.integers(1, 600), st.integers(0, 3600))
def test_an_exponential_delay_is_bounded_and_only_a_good_run_shortens_it(
    runs, attempts, multiplier, initial, more
):
    first = timedelta(seconds=initial)
    last = first + timedelta(seconds=more)
    strategy = ExponentialDelay(first, last, multiplier, reset_after=MINUTE)
    told = [strategy.delay(runs[: n + 1]) or last * 2 for n in range(len(runs))]
    assert all(first <= each <= last for each in told)
    for before, after, run in zip(told, told[1:], runs[1:], strict=False):
        assert after == first if run.lasted >= MINUTE else after >= before
    limited = ExponentialDelay(first, last, multiplier, reset_after=MINUTE, attempts=attempts)
    assert limited.delay(runs) in (None, told[-1])


@settings(deadline=None)  # a busy machine
@given(RUNS, st.integers(1, 5), st.integers(1, 5000))
def test_a_failure_rate_gives_up_only_over_its_rate(runs, failures, seconds):
    strategy = FailureRate(failures, timedelta(seconds=seconds))
    recent = [run for run in runs if run.failed_at >= runs[-1].failed_at - seconds]
    assert (strategy.delay(runs) is None) == (len(recent) > failures)


@settings(deadline=None)  # a busy machine
@given(RUNS, st.integers(0, 50))
def test_a_fixed_delay_gives_up_after_its_attempts(runs, attempts):
    assert (FixedDelay(attempts).delay(runs) is None) == (len(runs) > attempts)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FixedDelay(-1), "attempts -1"),
        (lambda: FixedDelay(pause=-SECOND), "pause"),
        (lambda: ExponentialDelay(timedelta(0)), "initial"),
        (lambda: ExponentialDelay(MINUTE, SECOND), "maximum 0:00:01: expected initial"),
        (lambda: ExponentialDelay(multiplier=0.5), "multiplier 0.5"),
        (lambda: ExponentialDelay(reset_after=timedelta(0)), "reset_after"),
        (lambda: ExponentialDelay(attempts=-1), "attempts -1"),
        (lambda: FailureRate(0), "failures 0"),
        (lambda: FailureRate(within=timedelta(0)), "within"),
        (lambda: FailureRate(pause=-SECOND), "pause"),
    ],
)
def test_what_cannot_work_is_refused(make, words):
    with pytest.raises(ConfigurationError, match=words):
        make()
