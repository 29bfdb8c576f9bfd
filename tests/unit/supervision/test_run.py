"""The restart strategy, by a clock of its own."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest

from airflow_eos.checkpoint import CheckpointStore, StartedBy, drain_requested, write_heartbeat
from airflow_eos.errors import AppFailedError, AppStoppedError, StoreError
from airflow_eos.sinks.restarts import ExponentialDelay, FailureRate, FixedDelay
from airflow_eos.supervision import stopping
from airflow_eos.supervision.app import Rules
from airflow_eos.supervision.run import StreamRun

from .lives import beat, started

US = StartedBy(dag_id="d", task_id="t", run_id="r", map_index=-1, submission="")


class Clock:
    def __init__(self):
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Crashing:
    """Runs for ``lasts`` seconds, then fails."""

    def __init__(self, clock: Clock, starts: list[float], lasts: float = 0.0):
        self.clock, self.starts, self.lasts = clock, starts, lasts
        self.killed = False
        self.detached = False

    @property
    def failure(self) -> Exception | None:
        return None if self.running else RuntimeError("it crashed")

    def start(self) -> None:
        self.starts.append(self.clock())

    @property
    def running(self) -> bool:
        return not self.killed and self.clock() < self.starts[-1] + self.lasts

    def kill(self) -> None:
        self.killed = True


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def starts() -> list[float]:
    return []


@pytest.fixture
def stream(tmp_path, clock, starts):
    def make(strategy=None, recover=lambda: None, **app) -> StreamRun:
        return StreamRun(
            CheckpointStore.open(tmp_path / "ck"),
            US,
            submit=lambda _us: Crashing(clock, starts, **app),
            recover=recover,
            rules=Rules(strategy or FixedDelay(), timedelta(seconds=30)),
            sleep=clock.sleep,
            clock=clock,
        )

    return make


def test_three_restarts_ten_seconds_apart_by_default(stream, starts):
    with pytest.raises(AppFailedError, match=r"failed 4 times.*FixedDelay.attempts=3"):
        stream().until_finished()
    assert starts == pytest.approx([1000, 1010, 1020, 1030])


def test_the_delay_counts_from_the_failure(stream, starts):
    strategy = FixedDelay(attempts=1, pause=timedelta(seconds=5))
    with pytest.raises(AppFailedError):
        stream(strategy, lasts=100).until_finished()
    assert starts[1] - starts[0] == pytest.approx(105, abs=1)


def test_no_restart_where_none_is_allowed(stream, starts):
    with pytest.raises(AppFailedError, match="failed 1 times"):
        stream(FixedDelay(attempts=0)).until_finished()
    assert len(starts) == 1


def test_pauses_grow_as_the_strategy_says(stream, starts):
    growing = ExponentialDelay(timedelta(seconds=10), timedelta(hours=1), 2, attempts=3)
    with pytest.raises(AppFailedError):
        stream(growing).until_finished()
    assert starts == pytest.approx([1000, 1010, 1030, 1070])


def test_a_run_that_was_well_sets_the_pause_back(stream, starts):
    growing = ExponentialDelay(
        timedelta(seconds=10), timedelta(hours=1), 2, reset_after=timedelta(seconds=90), attempts=3
    )
    run = stream(growing, lasts=100)

    def refuse_the_sixth():
        if len(starts) == 5:
            raise StoreError("enough")

    run._recover = refuse_the_sixth
    with pytest.raises(StoreError):
        run.until_finished()
    gaps = [later - sooner for sooner, later in itertools.pairwise(starts)]
    assert gaps == pytest.approx([110] * 4, abs=1)


def test_too_many_failures_in_too_short_a_time_end_it(stream, starts):
    rate = FailureRate(failures=2, within=timedelta(minutes=1), pause=timedelta(seconds=20))
    with pytest.raises(AppFailedError, match="FailureRate"):
        stream(rate).until_finished()
    assert len(starts) == 3


def test_what_recovery_refuses_is_not_started(stream, starts):
    def refuse():
        raise StoreError("gone")

    with pytest.raises(StoreError):
        stream(recover=refuse).until_finished()
    assert starts == []


def test_a_stop_during_the_delay_ends_it_without_another_start(stream, starts, clock, monkeypatch):
    run = stream(FixedDelay(pause=timedelta(hours=1)))
    slept = clock.sleep

    def stop_after_a_while(seconds):
        slept(seconds)
        if clock() > 1010:
            run.stop("a test")

    monkeypatch.setattr(run, "_sleep", stop_after_a_while)
    with pytest.raises(AppStoppedError, match="a test"):
        run.until_finished()
    assert len(starts) == 1
    assert clock() < 1012


def test_a_stop_before_the_start_prevents_it(stream, starts):
    run = stream()
    run.stop("a test")
    with pytest.raises(AppStoppedError):
        run.until_finished()
    assert starts == []


@pytest.mark.parametrize(("cancel", "asked"), [("drain", True), ("leave", False)])
@pytest.mark.parametrize(("whose", "ours"), [({}, True), ({"run_id": "r0"}, False)])
def test_a_stop_while_it_still_looks_reaches_the_app_that_it_would_have_found(
    tmp_path, clock, cancel, asked, whose, ours
):
    store = CheckpointStore.open(tmp_path / "ck")
    run = StreamRun(
        store,
        US,
        submit=lambda _us: pytest.fail("a third one"),
        recover=lambda: None,
        rules=Rules(FixedDelay(), timedelta(seconds=5), cancel=cancel),
        sleep=clock.sleep,
        clock=clock,
    )
    write_heartbeat(store, beat(term=None, started_by=started(**whose)))

    def stop_at_once(seconds):
        clock.sleep(seconds)
        run._sleep = clock.sleep
        run.stop("a test")

    run._sleep = stop_at_once
    with pytest.raises(AppStoppedError):
        run.until_finished()
    assert (drain_requested(store, submission="s1") is not None) is (asked and ours)


class Child(Crashing):
    """Says at its end that it stopped."""

    failure = None


@pytest.mark.parametrize("child", [True, False])
def test_a_store_that_refuses_ends_a_try_unless_its_own_child_lives(
    tmp_path, clock, starts, monkeypatch, child
):
    store = CheckpointStore.open(tmp_path / "ck")
    made = Child(clock, starts, lasts=100 if child else 0)
    made.detached = not child
    run = StreamRun(
        store,
        US,
        submit=lambda _us: made,
        recover=lambda: None,
        rules=Rules(FixedDelay(attempts=0), timedelta(seconds=5)),
        sleep=clock.sleep,
        clock=clock,
    )

    def refuse(*_):
        if starts and clock() < 1090:
            raise StoreError("expired") from PermissionError()

    monkeypatch.setattr(CheckpointStore, "get", refuse)
    with pytest.raises(AppFailedError if child else StoreError):
        run.until_finished()
    assert (clock() >= 1100) is child
    assert made.killed is False


def test_where_the_drain_request_cannot_be_written_the_app_is_killed(
    stream, starts, clock, monkeypatch
):
    def unreachable(*_, **__):
        raise StoreError("no store")

    monkeypatch.setattr(stopping, "request_drain", unreachable)
    run = stream(lasts=10_000)
    slept = clock.sleep

    def stop_once(seconds):
        slept(seconds)
        if 1010 < clock() < 1011:
            run.stop("a test")

    monkeypatch.setattr(run, "_sleep", stop_once)
    with pytest.raises(AppStoppedError):
        run.until_finished()
    assert clock() < 1015


class EndsBetween:
    """Says that it stopped, and exits, in the moment between a look and the question."""

    failure = None
    detached = False

    def __init__(self, store, us):
        self.store, self.us, self.asked = store, us, 0

    def start(self) -> None:
        self._say("waiting")

    @property
    def running(self) -> bool:
        self.asked += 1
        if self.asked == 2:
            self._say("stopped")
        return self.asked < 2

    def kill(self) -> None:
        raise AssertionError

    def _say(self, phase) -> None:
        write_heartbeat(self.store, beat(phase, term=None, end=None, started_by=self.us))


def test_an_exit_is_judged_by_a_look_that_came_after_it(tmp_path, clock):
    store = CheckpointStore.open(tmp_path / "ck")
    run = StreamRun(
        store,
        US,
        submit=lambda us: EndsBetween(store, us),
        recover=lambda: None,
        rules=Rules(FixedDelay(attempts=0), timedelta(seconds=30)),
        sleep=clock.sleep,
        clock=clock,
    )
    assert run.until_finished().ended.in_order
