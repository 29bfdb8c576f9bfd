"""The checkpoint policy, the timeout chain, the time of tasks and restart strategies."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_eos.core.delivery.batch_timeout import (
    GovernedSink,
    PolicyOption,
    chosen_trigger,
    within,
)
from airflow_eos.core.delivery.policy import (
    CheckpointPolicy,
    ExponentialDelay,
    Failure,
    FailureRate,
    FixedDelay,
)
from airflow_eos.core.delivery.spark_session import trigger_interval
from airflow_eos.errors import (
    BatchTimeoutError,
    ConfigurationError,
    KafkaUnavailableError,
    TimeoutBudgetError,
)
from airflow_eos.kafka.client.cluster import STATE_COPIES, STATE_MIN_INSYNC
from airflow_eos.kafka.preflight import check_timeouts, longest_timeout, require_transaction_log
from tests.support.metadata import capable
from tests.support.starts import Unchanged

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
    def examine(policy: CheckpointPolicy, guarantee: str) -> None:
        start: Any = SimpleNamespace(
            settings=SimpleNamespace(policy=policy), sink=SimpleNamespace(guarantee=guarantee)
        )
        PolicyOption(Unchanged()).examine(start)

    late = CheckpointPolicy(timeout=SECOND)
    with pytest.raises(ConfigurationError, match="at_most_once"):
        examine(late, "at_most_once")
    examine(late, "at_least_once")
    examine(CheckpointPolicy(), "at_most_once")


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


# --- The timeout chain and the trigger, refused with the figures in the message -------------------


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


# --- The time that the tasks of a batch may take, without Spark: what is cancelled, and when ------


SHORT = timedelta(seconds=0.05)
LONG = timedelta(minutes=5)


class Work:
    """Runs until it is cancelled ``stubborn`` times, then raises."""

    def __init__(self, stubborn: int = 1) -> None:
        self.left = stubborn
        self.cancelled = threading.Event()
        self.waited = False

    def run(self) -> None:
        assert self.cancelled.wait(300)
        raise RuntimeError("Job 7 cancelled")

    def cancel(self) -> None:
        self.left -= 1
        if self.left <= 0:
            self.cancelled.set()

    def wait(self) -> None:
        self.waited = True


def test_what_is_in_time_is_returned_and_nothing_is_cancelled():
    work = Work()
    assert within(LONG, lambda: "reports", work.cancel, work.wait) == "reports"
    assert not work.cancelled.is_set()


def test_an_error_in_time_stays_what_it_is():
    work = Work()
    with pytest.raises(ZeroDivisionError):
        within(LONG, lambda: 1 // 0, work.cancel, work.wait)
    assert not work.waited


def test_what_takes_longer_is_cancelled_and_fails_once_its_tasks_have_ended():
    work = Work()
    with pytest.raises(BatchTimeoutError, match=r"longer than 0\.05 s") as error:
        within(SHORT, work.run, work.cancel, work.wait)
    assert isinstance(error.value.__cause__, RuntimeError)
    assert work.waited, "what tasks still do could not be aborted"


def test_a_batch_that_starts_another_job_is_cancelled_again():
    work = Work(stubborn=2)
    with pytest.raises(BatchTimeoutError) as error:
        within(SHORT, work.run, work.cancel, work.wait)
    assert isinstance(error.value.__cause__, RuntimeError), "it was left to run"


def test_what_ends_well_but_late_is_not_decided():
    with pytest.raises(BatchTimeoutError):
        within(SHORT, lambda: time.sleep(0.3), lambda: None, lambda: None)


def test_nothing_is_cancelled_once_it_has_returned():
    """A decided batch must settle: the watcher has ended before anybody can decide."""
    before = set(threading.enumerate())
    within(LONG, lambda: None, lambda: None, lambda: None)
    assert set(threading.enumerate()) <= before


def test_a_promised_batch_is_evaluated_without_a_limit():
    reports: Any = object()
    inner: Any = SimpleNamespace(prepare=lambda _rows, *, only: reports if only == () else None)
    rows: Any = object()  # no DataFrame: Spark is not even asked for its tasks
    assert GovernedSink(inner, SHORT, lambda: None).prepare(rows, only=()) is reports


def test_a_replay_is_that_of_the_sink_itself():
    part = object()
    inner: Any = SimpleNamespace(part=lambda _name: part)
    assert GovernedSink(inner, SHORT, lambda: None).part("sink") is part


def test_what_was_read_is_confirmed_once_it_was_read():
    """Before it a topic could still be made again; a decision comes after it."""
    done: list[str] = []
    inner: Any = SimpleNamespace(prepare=lambda _rows, **_only: done.append("read"))
    rows: Any = object()
    for only in (None, ()):
        GovernedSink(inner, None, lambda: done.append("confirmed")).prepare(rows, only=only)
    assert done == ["read", "confirmed"] * 2


def test_what_was_read_of_a_batch_to_decide_is_confirmed_with_its_decision_and_a_replay_at_once():
    done: list[str] = []
    inner: Any = SimpleNamespace(prepare=lambda _rows, **_only: done.append("read"))
    rows: Any = object()
    decided = GovernedSink(inner, None, lambda: done.append("confirmed"), is_decided=True)
    decided.prepare(rows)
    assert done == ["read"]
    decided.prepare(rows, only=())
    assert done == ["read", "read", "confirmed"]


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once", "at_most_once"])
def test_only_who_decides_leaves_the_source_to_be_confirmed_later(guarantee):
    start: Any = SimpleNamespace(
        sink=SimpleNamespace(guarantee=guarantee),
        settings=SimpleNamespace(policy=CheckpointPolicy()),
    )
    sink: Any = object()
    governed: Any = PolicyOption(Unchanged()).wrap(start, sink)
    assert governed.is_decided == (guarantee == "exactly_once")


# --- Restart strategies: tables in Flink's terms, and what holds for every history ----------------


A_SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


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
    strategy = ExponentialDelay(A_SECOND, 10 * A_SECOND, multiplier=2)
    assert delays(strategy, *[5.0] * 6) == [1, 2, 4, 8, 10, 10]


def test_exponential_delay_begins_again_after_a_run_that_was_well():
    strategy = ExponentialDelay(A_SECOND, HOUR, multiplier=3, reset_after=MINUTE)
    assert delays(strategy, 5, 5, 5, 60, 5, 59.9, 5) == [1, 3, 9, 1, 3, 9, 27]


def test_exponential_delay_counts_attempts_since_it_began_again():
    strategy = ExponentialDelay(A_SECOND, HOUR, multiplier=2, reset_after=MINUTE, attempts=2)
    assert delays(strategy, 5, 5, 100, 5, 5) == [1, 2, 1, 2, None]


def test_failure_rate_forgets_what_was_long_ago():
    strategy = FailureRate(failures=2, within=MINUTE, pause=A_SECOND)
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
        (lambda: FixedDelay(-1), "attempts=-1"),
        (lambda: FixedDelay(pause=-A_SECOND), "pause"),
        (lambda: ExponentialDelay(timedelta(0)), "initial"),
        (lambda: ExponentialDelay(MINUTE, A_SECOND), "maximum 0:00:01: expected initial"),
        (lambda: ExponentialDelay(multiplier=0.5), "multiplier 0.5"),
        (lambda: ExponentialDelay(reset_after=timedelta(0)), "reset_after"),
        (lambda: ExponentialDelay(attempts=-1), "attempts=-1"),
        (lambda: FailureRate(0), "failures=0"),
        (lambda: FailureRate(within=timedelta(0)), "within"),
        (lambda: FailureRate(pause=-A_SECOND), "pause"),
    ],
)
def test_a_restart_strategy_that_cannot_work_is_refused(make, words):
    with pytest.raises(ConfigurationError, match=words):
        make()


def cluster_whose_log_of_transactions_has(
    copies: int, least: int, settings: tuple[int, int]
) -> Any:
    told = dict(zip((STATE_COPIES, STATE_MIN_INSYNC), map(str, settings), strict=True))
    log = SimpleNamespace(
        error_code=0, partitions=[SimpleNamespace(replica_nodes=list(range(copies)))]
    )
    cluster = SimpleNamespace(
        capabilities=lambda: SimpleNamespace(settings=told),
        describe_topic=lambda _: log,
        topic_config=lambda _topic, _names: {"min.insync.replicas": str(least)},
    )
    reach = SimpleNamespace(bootstrap_servers="kafka:9092")
    return SimpleNamespace(cluster=cluster, settings=reach)


@pytest.mark.parametrize(
    ("copies", "least", "settings"),
    [(3, 2, (1, 1)), (3, 2, (3, 2)), (1, 1, (3, 2))],
    ids=["more copies since it was made", "as its settings say", "made before its settings"],
)
def test_a_log_of_transactions_that_is_there_is_asked_and_not_the_settings_of_a_new_one(
    copies: int, least: int, settings: tuple[int, int]
):
    """Given more copies by hand, it was refused: "is to have 3 copies, and 1 broker runs"."""
    require_transaction_log(cluster_whose_log_of_transactions_has(copies, least, settings))


@pytest.mark.parametrize("settings", [(3, 2), (1, 1)], ids=["as made", "changed since"])
def test_a_log_of_transactions_with_fewer_copies_than_must_be_in_sync_is_refused(
    settings: tuple[int, int],
):
    """Told to lower the brokers' settings, who did so was let in, and every transaction waited."""
    wire = cluster_whose_log_of_transactions_has(1, 2, settings)
    with pytest.raises(KafkaUnavailableError, match="2 is more than 1") as refused:
        require_transaction_log(wire)
    assert "set transaction.state.log" not in str(refused.value)
    more, fewer = refused.value.remedies
    assert "give each of its partitions 2 copies or more" in more.change
    [alter] = fewer.commands
    assert alter == (
        "kafka-configs.sh --bootstrap-server kafka:9092 --alter --entity-type topics "
        "--entity-name __transaction_state --add-config min.insync.replicas=1"
    )
