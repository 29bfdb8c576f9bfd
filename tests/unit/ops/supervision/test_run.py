"""The restart strategy, by a clock of its own."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import time
from datetime import timedelta

import pytest

from airflow_eos.core.checkpoint import (
    CheckpointStore,
    Phase,
    StartedBy,
    drain_requested,
    request_drain,
    write_heartbeat,
)
from airflow_eos.core.checkpoint.drain import BY_STANDBY
from airflow_eos.core.delivery.policy import ExponentialDelay, FailureRate, FixedDelay
from airflow_eos.errors import (
    AppFailedError,
    AppStoppedError,
    CheckpointFormatError,
    ForeignDriverError,
    StoreError,
)
from airflow_eos.ops.supervision import heartbeat_monitor as stopping
from airflow_eos.ops.supervision.exit_status import ExitKind, ExitStatus, Patience
from airflow_eos.ops.supervision.rules import Rules
from airflow_eos.ops.supervision.run import AppRun, StreamRun
from airflow_eos.ops.supervision.trigger_watch import AppResult
from tests.unit.ops.supervision.lives import beat, run_of, started

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
        return run_of(
            CheckpointStore.open(tmp_path / "ck"),
            clock,
            lambda _us: Crashing(clock, starts, **app),
            recover=recover,
            rules=Rules(strategy or FixedDelay(), timedelta(seconds=30)),
            wall=clock,
        )

    return make


def test_a_time_of_day_that_jumps_delays_no_restart_and_gives_up_nobody(tmp_path, clock, starts):
    """Set back by an hour, a pause of ten seconds would last one; ahead, a drain would be over."""
    days = itertools.count(0, -3600)
    run = run_of(
        CheckpointStore.open(tmp_path / "ck"),
        clock,
        lambda _us: Crashing(clock, starts),
        rules=Rules(FixedDelay(), timedelta(seconds=30)),
        wall=lambda: float(next(days)),
    )
    with pytest.raises(AppFailedError):
        run.until_finished()
    assert starts == pytest.approx([1000, 1010, 1020, 1030])
    given = inspect.signature(StreamRun).parameters
    assert given["clock"].default is time.monotonic


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
    run = run_of(
        store,
        clock,
        lambda _us: pytest.fail("a third one"),
        rules=Rules(FixedDelay(), timedelta(seconds=5), cancel=cancel),
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
    run = run_of(
        store, clock, lambda _us: made, rules=Rules(FixedDelay(attempts=0), timedelta(seconds=5))
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

    monkeypatch.setattr(run._watcher, "_sleep", stop_once)
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
    run = run_of(store, clock, lambda us: EndsBetween(store, us))
    assert run.until_finished().ended.in_order


class Hanging(Crashing):
    """Writes this heartbeat, or none, and is there until somebody kills it."""

    def __init__(self, clock, starts, store, us, **says):
        super().__init__(clock, starts, lasts=1e9)
        self.store, self.us, self.says = store, us, says

    def start(self) -> None:
        super().start()
        if self.says:
            write_heartbeat(self.store, beat(term=None, started_by=self.us, **self.says))


@pytest.fixture
def hanging(tmp_path, clock, starts):
    """A run of apps that hang; the patience is a minute, and ten for a first heartbeat."""
    store, made = CheckpointStore.open(tmp_path / "ck"), []

    def make(**says) -> tuple[StreamRun, list[Hanging]]:
        def submit(us: StartedBy) -> Hanging:
            made.append(Hanging(clock, starts, store, us, **says))
            return made[-1]

        rules = Rules(FixedDelay(attempts=1), timedelta(seconds=30))
        run = run_of(store, clock, submit, rules=rules)
        return run, made

    return make


def test_a_driver_that_failed_and_whose_process_hangs_is_ended_and_started_again(hanging, clock):
    run, made = hanging(phase="failed", end="failed", reason="RowError: x")
    with pytest.raises(AppFailedError, match=r"failed 2 times.*RowError: x.*still there"):
        run.until_finished()
    assert [each.killed for each in made] == [True, True]
    assert 1130 <= clock() < 1170


def test_a_process_that_hangs_behind_a_query_that_stopped_in_order_is_ended_in_the_end(
    hanging, clock
):
    run, made = hanging(phase="stopped", end="finished")
    done = run.until_finished()
    assert done.ended.in_order
    assert made[0].killed
    assert 1600 <= clock() < 1620, "an app may have work of its own behind its query"


def test_a_process_that_never_beats_is_no_app_and_is_ended(hanging, starts, clock):
    run, made = hanging()
    with pytest.raises(AppFailedError, match=r"failed 2 times.*never seen"):
        run.until_finished()
    assert [each.killed for each in made] == [True, True]
    assert starts[1] - starts[0] == pytest.approx(610, abs=6)


def test_a_child_that_beats_for_long_and_is_superseded_has_time_to_end(tmp_path, clock, starts):
    """What counts is since when it is not the newest driver, and not since when it runs."""
    store = CheckpointStore.open(tmp_path / "ck")
    child = Hanging(clock, starts, store, US)
    run = run_of(
        store,
        clock,
        lambda _us: child,
        rules=Rules(FixedDelay(attempts=0), timedelta(seconds=30), Patience(60.0, 100.0)),
    )

    def live(seconds: float) -> None:
        clock.sleep(seconds)
        if clock() % 2:
            return
        ours = run._app.submission
        newer = clock() > 1150
        who = started("s9", run_id="r9") if newer else started(ours)
        write_heartbeat(store, beat(term=2 if newer else 1, started_by=who, batch_id=int(clock())))

    run._watcher._sleep = live
    with pytest.raises(ForeignDriverError, match="r9"):
        run.until_finished()
    assert child.killed
    assert 1250 <= clock() < 1270


def test_a_driver_that_handed_over_has_ended_in_order_though_the_next_one_beat_first(
    tmp_path, clock, monkeypatch
):
    store = CheckpointStore.open(tmp_path / "ck")

    def live(seconds: float) -> None:
        clock.sleep(seconds)
        other = started("s9", run_id="r9")
        write_heartbeat(store, beat(term=2, started_by=other, batch_id=int(clock() * 10)))

    run = run_of(
        store,
        clock,
        lambda _us: pytest.fail("another one drives"),
        recover=lambda: pytest.fail("another one drives"),
        sleep=live,
    )
    live(0)
    taken = AppResult("s1", ExitStatus(ExitKind.SUPERSEDED, "s9 runs it"), (), clock())
    with pytest.raises(ForeignDriverError, match="r9"):
        run.until_finished(taken)
    request_drain(store, requested_by=BY_STANDBY, reason="upgrade", submission="s1")
    assert run.until_finished(taken).ended.end is ExitKind.DRAINED
    monkeypatch.setattr(run._watcher, "until_ended", lambda _app: taken.ended)
    watched = run._restart_until_finished(AppRun("s1", None, clock(), clock()))
    assert watched.ended.end is ExitKind.DRAINED


def beats_on(run: StreamRun, store: CheckpointStore, clock: Clock) -> None:
    """The app that is watched beats whenever time goes on, until it stops after a minute."""

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        phase: Phase = "stopped" if clock() > 1060 else "waiting"
        write_heartbeat(store, beat(phase, term=None, batch_id=int(clock() * 10)))

    run._sleep = run._watcher._sleep = sleep


def refusing(monkeypatch, clock: Clock, store: CheckpointStore, until: float) -> None:
    """This one store refuses, as its keys have expired, from 1010 on."""
    real = CheckpointStore.get

    def get(self, path):
        if self is store and 1010 < clock() < until:
            raise StoreError("403") from PermissionError()
        return real(self, path)

    monkeypatch.setattr(CheckpointStore, "get", get)


def test_a_store_that_refuses_a_look_or_two_drains_no_app(adopted, clock, monkeypatch):
    run, store = adopted
    beats_on(run, store, clock)
    refusing(monkeypatch, clock, store, until=1014)
    assert run.until_finished().ended.in_order
    assert drain_requested(store, submission="s1") is None


def test_where_keys_have_expired_those_of_now_are_taken(adopted, clock, monkeypatch):
    run, store = adopted
    beats_on(run, store, clock)
    refusing(monkeypatch, clock, store, until=1e9)
    now = CheckpointStore.open(store.location)
    run._pulse._reopen = lambda: now
    assert run.until_finished().ended.in_order
    assert run._store is now, "also for what comes after: a request, a restart"


def test_a_store_that_refuses_for_good_ends_the_try_and_leaves_the_app_alone(
    adopted, clock, monkeypatch
):
    """It is the task that may not look; the next try takes the app over."""
    run, store = adopted
    beats_on(run, store, clock)
    refusing(monkeypatch, clock, store, until=1e9)
    monkeypatch.setattr(stopping, "request_drain", lambda *_, **__: pytest.fail("asked"))
    monkeypatch.setattr(stopping, "kill_elsewhere", lambda *_: pytest.fail("killed"))
    with pytest.raises(StoreError, match="403"):
        run.until_finished()
    assert clock() < 1030


def damaged(run: StreamRun, store: CheckpointStore, clock: Clock, until: float) -> None:
    """Its heartbeat is one that nobody can read from 1010 on."""
    beats_on(run, store, clock)
    beats = run._sleep

    def sleep(seconds: float) -> None:
        beats(seconds)
        if 1010 < clock() < until:
            store.put("eos/driver.json", b"\0" * 80)

    run._sleep = run._watcher._sleep = sleep


def test_a_heartbeat_that_nobody_can_read_for_a_moment_ends_no_watch(adopted, clock):
    run, store = adopted
    damaged(run, store, clock, until=1014)
    assert run.until_finished().ended.in_order
    assert drain_requested(store, submission="s1") is None


def test_a_heartbeat_that_nobody_can_read_ends_the_try_and_leaves_the_app_alone(
    adopted, clock, monkeypatch
):
    """A newer release may have written it: the app runs well, and was drained."""
    run, store = adopted
    damaged(run, store, clock, until=1e9)
    monkeypatch.setattr(stopping, "kill_elsewhere", lambda *_: pytest.fail("killed"))
    with pytest.raises(CheckpointFormatError):
        run.until_finished()
    assert drain_requested(store, submission="s1") is None
    assert clock() < 1030


def test_where_nobody_can_be_told_of_the_app_it_goes_on(adopted, clock):
    """Airflow's API may be away as its links are pushed."""
    run, store = adopted
    beats_on(run, store, clock)

    def away(_):
        raise ConnectionError

    run._watcher._on_first_heartbeat = away
    assert run.until_finished().ended.in_order
    assert drain_requested(store, submission="s1") is None


@pytest.fixture
def adopted(tmp_path, clock) -> tuple[StreamRun, CheckpointStore]:
    """A try that watches an app on another machine."""
    store = CheckpointStore.open(tmp_path / "ck")
    write_heartbeat(store, beat(term=None, host="worker-7", deploy_mode="client"))
    run = run_of(
        store,
        clock,
        lambda _us: Crashing(clock, []),
        rules=Rules(FixedDelay(attempts=1), timedelta(seconds=30)),
    )
    run._app = AppRun("s1", None, clock(), clock())
    return run, store


def test_an_app_out_of_reach_that_was_given_up_is_asked_to_end_should_it_come_back(adopted):
    run, store = adopted
    with pytest.raises(AppFailedError, match="failed 2 times"):
        run.until_finished(AppResult("s1", ExitStatus(ExitKind.VANISHED, "x"), (), 0.0))
    assert drain_requested(store, submission="s1").requested_by == "airflow"


def test_a_kill_from_another_machine_asks_to_drain_too(adopted):
    run, store = adopted
    run._rules = dataclasses.replace(run._rules, cancel="kill")
    run.stop("a test")
    assert drain_requested(store, submission="s1").reason == "a test"


def test_a_stop_goes_on_asking_where_the_store_is_away_for_a_moment(adopted, clock, monkeypatch):
    run, store = adopted
    real, since = request_drain, clock()

    def away(*given, **named):
        if clock() < since + 3:
            raise StoreError("503")
        return real(*given, **named)

    monkeypatch.setattr(stopping, "request_drain", away)
    run.stop("marked as failed")
    assert drain_requested(store, submission="s1") is not None
