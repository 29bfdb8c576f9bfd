"""What a driver says of itself, and whom it listens to."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any

import msgspec
import pytest

from airflow_eos.core.checkpoint import (
    CheckpointStore,
    StartedBy,
    clear_drain,
    drain,
    drain_requested,
    newest_term,
    read_heartbeat,
    request_drain,
    take_term,
    write_heartbeat,
)
from airflow_eos.core.checkpoint.backend import DRAIN, drain_path
from airflow_eos.core.checkpoint.drain import (
    BY_AIRFLOW,
    BY_STANDBY,
    is_asked_for_nothing,
    request_to,
    withdraw_hand_over,
)
from airflow_eos.core.checkpoint.heartbeat import STARTED_BY
from airflow_eos.core.checkpoint.liveness import Standstill
from airflow_eos.core.checkpoint.standby import write_standby
from airflow_eos.core.checkpoint.terms import is_newest
from airflow_eos.core.delivery import beats as module
from airflow_eos.core.delivery.beats import BeatLoop
from airflow_eos.errors import ConfigurationError, RowError, SupersededError
from tests.support.beats import beside, heartbeat, standby
from tests.unit.ops.supervision.lives import started

SPARKS = "ValueError: see the driver's log"
OURS = StartedBy(dag_id="d", task_id="g.t", run_id='m__"1" &é', map_index=-1, submission="s1")


@pytest.fixture
def store(tmp_path) -> CheckpointStore:
    return CheckpointStore.open(tmp_path)


@pytest.fixture(autouse=True)
def terms(monkeypatch) -> None:
    """A term that a test names without taking it is the newest; one that was taken is asked for."""
    real = is_newest
    monkeypatch.setattr(module, "is_newest", lambda s, n: newest_term(s) == 0 or real(s, n))


@pytest.fixture
def writer(store, monkeypatch):
    monkeypatch.setattr(module, "beat_interval", lambda _: timedelta(milliseconds=5))
    monkeypatch.setenv(STARTED_BY, OURS.as_text())
    made = []

    def make(*begun: int | None, **other: Any) -> BeatLoop:
        """``begun`` with its term, if it has one."""
        made.append(
            BeatLoop(
                store,
                application_id="local-1",
                trigger=timedelta(seconds=1),
                master="yarn",
                deploy_mode="cluster",
                **other,
            )
        )
        for term in begun:
            made[-1].start(term)
        return made[-1]

    yield make
    for each in made:
        each._ended.set()
        if each._thread is not None:
            each._thread.join()


def test_it_says_who_started_it_and_where_it_runs(writer, store):
    writer().start(3)
    beat = read_heartbeat(store)
    assert (beat.term, beat.started_by, beat.submission) == (3, OURS, "s1")
    assert (beat.master, beat.deploy_mode, beat.end) == ("yarn", "cluster", None)


def test_the_text_of_a_starter_survives_a_shell_that_does_not_escape():
    text = OURS.as_text()
    assert not set(text) & set("\"'$`\\ \n")
    assert StartedBy.of_text(text) == OURS
    assert StartedBy.of_text(None) is None
    with pytest.raises(ConfigurationError, match="EOS_STARTED_BY"):
        StartedBy.of_text("garbage")


def test_a_superseded_driver_does_not_write_over_the_heartbeat_of_the_newer_one(writer, store):
    old, new = writer(), writer()
    old.start(take_term(store, taken_by="a").term.number)
    new.start(take_term(store, taken_by="b").term.number)
    old.stop("failed", SupersededError("a driver with term 2 has started"))
    _until(lambda: read_heartbeat(store).term == 2)
    old._beat()
    assert read_heartbeat(store).term == 2
    new.stop("failed", SupersededError("sealed by a recovery"))
    assert (read_heartbeat(store).phase, read_heartbeat(store).end) == ("failed", "superseded")


@pytest.mark.parametrize("beats", [True, False])
def test_a_superseded_driver_without_input_ends_by_itself(writer, store, beats):
    """No batch of its own would ever tell it; also where the newer one died before it beat."""
    old = writer(take_term(store, taken_by="a").term.number)
    assert not old.draining.wait(0.05)
    newer = take_term(store, taken_by="b").term.number
    if beats:
        writer().start(newer)
    assert old.draining.wait(60)
    assert old.superseded.is_set()
    old.before_stopped = pytest.fail
    old.stop("stopped")
    assert read_heartbeat(store).term == (newer if beats else 1)
    assert read_heartbeat(store).end is None, "it has nothing to say any more"


def test_a_driver_that_was_refused_before_it_began_leaves_the_living_ones_heartbeat_alone(
    writer, store
):
    writer().start(1)
    before = read_heartbeat(store)
    writer().stop("failed", ConfigurationError("no"))
    assert read_heartbeat(store).phase == before.phase == "starting"


@pytest.mark.parametrize(
    ("term", "submission", "obeyed"),
    [(2, None, True), (None, "s1", True), (1, None, False), (3, None, False), (None, "s0", False)],
)
def test_a_drain_is_obeyed_only_by_the_driver_that_it_names(
    writer, store, term, submission, obeyed
):
    each = writer(2)
    request_drain(store, requested_by="ops", reason="why", term=term, submission=submission)
    moments = set()

    def has_looked() -> bool:
        """The second beat from here on follows what the first has looked for."""
        moments.add(read_heartbeat(store).beat_at_ms)
        return len(moments) > 2

    _until(has_looked)
    assert each.draining.is_set() is obeyed


@pytest.mark.parametrize(
    ("request_", "left"),
    [({"term": 1}, False), ({}, False), ({"submission": "s1"}, True)],
    ids=["a former term", "nobody", "this start"],
)
def test_a_start_removes_what_was_not_meant_for_it_and_nothing_else(writer, store, request_, left):
    request_drain(store, requested_by="ops", reason="why", **request_)
    each = writer(2)
    asked = drain_requested(store, term=request_.get("term"), submission="s1")
    assert (asked is not None) is left
    assert each.draining.is_set() is left


def test_a_drain_is_heard_also_after_an_error_that_is_no_store_error(writer, store, monkeypatch):
    """As where the machine gave no thread for a while: HDFS is asked by threads."""
    driver = writer(1)
    failed = threading.Event()

    def no_thread(_path: str) -> None:
        failed.set()
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(store, "list", no_thread)
        assert failed.wait(5)
    request_drain(store, requested_by="ops", reason="to look at it", term=1)
    assert driver.draining.wait(5)


# --- Handing over -------------------------------------------------------------------------------


def hand_over_to(store, **standing: Any) -> None:
    take_term(store, taken_by="us")
    write_standby(store, standby(**standing))
    request_drain(store, requested_by=BY_STANDBY, reason="upgrade", term=1)


@contextmanager
def one_that_lives(store, **said: Any) -> Iterator[None]:
    """One that stands by, and says so again and again."""

    def say(ended: threading.Event) -> None:
        for n in count(1):
            if ended.wait(0.02):
                return
            write_standby(store, standby(beat=n, **said))

    with beside(say):
        yield


def test_a_driver_that_hands_over_goes_on_until_the_standby_is_ready(writer, store):
    """What the standby has to ask takes a second, in which rows would stand still."""
    hand_over_to(store)
    driver = writer(1)
    assert not driver.draining.wait(0.3), "the standby was not ready"
    with one_that_lives(store, behind=2, is_ready=True):
        assert not driver.draining.wait(0.3), "it was ready for another driver"
    with one_that_lives(store, is_ready=True):
        assert driver.draining.wait(60)


def test_nobody_is_handed_over_to_who_was_ready_and_has_died_since(writer, store, monkeypatch):
    """It says for ever what it said last; and one that died in this hand-over lives no more."""
    monkeypatch.setattr(module, "_READY_WITHIN_S", 2.5)
    write_standby(store, standby(name="s3", is_ready=True))
    hand_over_to(store)
    driver = writer(1)
    _until(lambda: read_heartbeat(store).drained_by == BY_STANDBY)
    with one_that_lives(store, interval_ms=100):
        assert not driver.draining.wait(0.3)
    _until(lambda: driver.draining.is_set() or drain_requested(store, term=1) is None)
    assert not driver.draining.is_set(), "it has handed over to one that died"


def test_a_driver_hands_over_all_the_same_where_a_standby_only_takes_long(
    writer, store, monkeypatch
):
    """Its warm-up is a batch that takes minutes; another one could not go on at all."""
    monkeypatch.setattr(module, "_READY_WITHIN_S", 1.0)
    monkeypatch.setattr(module, "_REFUSED_WITHIN_S", 0.0)
    hand_over_to(store)
    driver = writer(1)
    beat = 0

    def beats() -> bool:
        nonlocal beat
        beat += 1
        write_standby(store, standby(beat=beat))
        write_standby(store, standby(name="s3", beat=beat, reason="TopicError: gone"))
        return bool(driver.draining.is_set())

    _until(beats)
    assert driver._drain.hands_over


@pytest.mark.parametrize(
    ("end", "reason", "beats"),
    [
        (None, "TopicError: gone", True),
        ("refused", "TopicError: gone", False),
        (None, "", False),
    ],
    ids=["it cannot go on", "it has left", "it was killed"],
)
def test_a_driver_that_nobody_could_follow_goes_on_and_takes_the_hand_over_back(
    writer, store, monkeypatch, end, reason, beats
):
    """Its topic is gone since it was examined, say: handed over to, the pipeline would be down."""
    monkeypatch.setattr(module, "_READY_WITHIN_S", 3.0 if beats else 0.5)
    monkeypatch.setattr(module, "_REFUSED_WITHIN_S", 0.5 if beats else 300.0)
    write_standby(store, standby(name="s3"))  # one that was killed before, and says so for ever
    hand_over_to(store, reason=reason, end=end)
    request_drain(store, requested_by=BY_STANDBY, reason="upgrade", submission="s1")
    driver = writer(1)
    beat = 0

    def is_decided() -> bool:
        nonlocal beat
        beat += beats
        write_standby(store, standby(reason=reason, end=end, beat=beat))
        is_asked = drain_requested(store, term=1, submission="s1") is not None
        return driver.draining.is_set() or not is_asked

    _until(is_decided)
    assert not driver.draining.is_set()
    _until(lambda: read_heartbeat(store).drained_by is None)
    assert request_to(store, "s1") is None
    request_drain(store, requested_by=BY_STANDBY, reason="upgrade", term=1)
    with one_that_lives(store, is_ready=True):
        assert driver.draining.wait(60), "asked again, it does not hear"


def test_what_asks_a_driver_to_stop_outlasts_the_hand_over_that_it_takes_back(store):
    request_drain(store, requested_by="cli ops", reason="now", term=1)
    request_drain(store, requested_by=BY_AIRFLOW, reason="cleared", submission="s1")
    request_drain(store, requested_by=BY_STANDBY, reason="upgrade", submission="s1")
    withdraw_hand_over(store, term=1, submission="s1")
    assert drain_requested(store, term=1, submission="s1").requested_by == "cli ops"
    assert request_to(store, "s1").requested_by == BY_AIRFLOW
    request_drain(store, requested_by=BY_STANDBY, reason="upgrade", term=2)
    withdraw_hand_over(store, term=1, submission="s1")
    assert drain_requested(store, term=2).requested_by == BY_STANDBY, "another driver's"


def test_a_request_that_the_next_driver_removes_was_not_taken_back(store, monkeypatch):
    """Between two questions: who had asked for the hand-over would hear that it failed."""
    take_term(store, taken_by="us")
    request_drain(store, requested_by=BY_STANDBY, reason="upgrade", term=1)

    def and_one_follows(at: CheckpointStore) -> int:
        found = newest_term(at)
        take_term(store, taken_by="the next")
        clear_drain(store, term=2, submission=None)
        return found

    monkeypatch.setattr(drain, "newest_term", and_one_follows)
    assert not is_asked_for_nothing(store, 1)


def test_a_driver_that_airflow_stops_while_it_waits_to_hand_over_is_not_kept_waiting(writer, store):
    """A cleared task: both requests stand, and the one to hand over was heard first."""
    hand_over_to(store)
    request_drain(store, requested_by=BY_STANDBY, reason="upgrade", submission="s1")
    driver = writer(1)
    assert not driver.draining.wait(0.3)
    request_drain(store, requested_by=BY_AIRFLOW, reason="cleared", submission="s1")
    assert driver.draining.wait(5)
    driver.stop("stopped")
    assert read_heartbeat(store).drained_by == BY_AIRFLOW


def test_a_person_who_stops_a_driver_that_waits_to_hand_over_is_not_kept_waiting(writer, store):
    hand_over_to(store)
    driver = writer(1)
    assert not driver.draining.wait(0.3)
    request_drain(store, requested_by="cli ops", reason="now", term=1)
    assert driver.draining.wait(5)
    driver.stop("stopped")
    assert read_heartbeat(store).drained_by == "cli ops"


def test_a_driver_that_handed_over_holds_still_until_the_next_one_has_begun_a_batch(writer, store):
    """On one machine its shutdown would take the processor from the batch that is waited for."""
    hand_over_to(store)
    driver = writer(1)
    with one_that_lives(store, is_ready=True):
        assert driver.draining.wait(60)
    driver.stop("stopped")
    assert read_heartbeat(store).end == "drained"
    ended = threading.Thread(target=driver.hold_still)
    ended.start()
    ended.join(0.3)
    assert ended.is_alive()
    write_heartbeat(store, heartbeat("preparing", term=2, batch_id=8))
    ended.join(4)
    assert not ended.is_alive()


def test_a_driver_that_handed_over_ends_also_where_nobody_follows(writer, store, monkeypatch):
    monkeypatch.setattr(module, "_FOLLOWED_WITHIN_S", 0.2)
    hand_over_to(store)
    driver = writer(1)
    with one_that_lives(store, is_ready=True):
        assert driver.draining.wait(60)
    driver.stop("stopped")
    assert read_heartbeat(store).end == "drained"
    driver.hold_still()


def test_a_driver_that_ends_by_itself_before_the_standby_is_ready_has_handed_over(writer, store):
    """Else the standby would take it for one that has read all, and leave."""
    hand_over_to(store)
    driver = writer(1)
    _until(lambda: read_heartbeat(store).drained_by == BY_STANDBY)
    assert not driver.draining.is_set()
    driver.stop("stopped")
    beat = read_heartbeat(store)
    assert (beat.end, beat.drained_by) == ("drained", BY_STANDBY)


def test_a_hand_over_that_is_taken_back_is_none(writer, store):
    hand_over_to(store)
    driver = writer(1)
    _until(lambda: read_heartbeat(store).drained_by == BY_STANDBY)
    store.delete([DRAIN])
    _until(lambda: read_heartbeat(store).drained_by is None)
    with one_that_lives(store, is_ready=True):
        assert not driver.draining.wait(0.3)


def test_a_driver_that_waits_to_hand_over_beats_and_asks_no_more_than_it_must(
    writer, store, monkeypatch
):
    """A standby takes who is silent for dead; a bucket bills each request, and limits writes."""
    hand_over_to(store)
    driver = writer(1)
    monkeypatch.setattr(driver._own, "interval", timedelta(seconds=0.5))
    monkeypatch.setattr(driver._own, "_pace", lambda: timedelta(seconds=0.5))
    _until(lambda: read_heartbeat(store).drained_by == BY_STANDBY)
    beats: set[int] = set()
    until = time.monotonic() + 2.2
    while time.monotonic() < until:
        beats.add(read_heartbeat(store).beat_at_ms)
        time.sleep(0.02)
    assert 3 <= len(beats) <= 7


def test_an_at_least_once_driver_that_comes_back_says_nothing_over_who_took_its_place(
    writer, store, monkeypatch
):
    """It was given up, out of reach: both are without a term."""
    old = writer(None)
    request_drain(store, requested_by="airflow", reason="it was given up", submission="s1")
    newer = started("s2")
    monkeypatch.setenv(STARTED_BY, newer.as_text())
    new = writer(None)
    assert old.superseded.wait(60)
    assert old.draining.is_set()
    assert not new.superseded.is_set()
    new._beat()
    old.stop("failed", SupersededError("x"))
    assert read_heartbeat(store).started_by == newer
    assert read_heartbeat(store).phase == "starting"


def test_an_at_least_once_driver_that_drains_alone_says_how_it_ended(writer, store):
    each = writer(None)
    request_drain(store, requested_by="airflow", reason="cleared", submission="s1")
    assert each.draining.wait(60)
    assert not each.superseded.is_set()
    each.stop("stopped")
    assert (read_heartbeat(store).end, read_heartbeat(store).drained_by) == ("drained", "airflow")


def test_a_start_that_waits_in_its_cluster_stays_cancelled_whoever_starts_and_drains_meanwhile(
    writer, store, monkeypatch
):
    """It comes up hours later: nobody in Airflow is in charge of it any more."""
    request_drain(store, requested_by="airflow", reason="cancelled", submission="s-pending")
    between = writer(2)
    request_drain(store, requested_by="ann", reason="a release", term=2)
    request_drain(store, requested_by="airflow", reason="cleared", submission="s1")
    assert between.draining.wait(60)
    monkeypatch.setenv(STARTED_BY, msgspec.structs.replace(OURS, submission="s-pending").as_text())
    pending = writer(3)
    assert pending.draining.is_set(), "before its first batch"


def test_a_request_to_a_start_that_cannot_be_read_gives_way_to_the_next_one(writer, store):
    """Who asked was told that a request stood there, and the driver never heard of it."""
    each = writer(2)
    store.put(drain_path("s1"), b'{"format_ver')
    assert not each.draining.wait(0.1)
    request_drain(store, requested_by="airflow", reason="cleared", submission="s1")
    assert request_to(store, "s1") is not None
    assert each.draining.wait(60)


def test_a_request_to_a_start_is_removed_once_nobody_can_come_up_any_more(store, monkeypatch):
    for each in ("s0", "s1"):
        request_drain(store, requested_by="airflow", reason="x", submission=each)
    clear_drain(store, term=2, submission="s1")
    assert drain_requested(store, submission="s0") is not None
    monkeypatch.setattr(drain, "DRAINS_KEPT", timedelta(seconds=-60))
    clear_drain(store, term=2, submission="s1")
    assert drain_requested(store, submission="s0") is None
    assert drain_requested(store, submission="s1") is not None, "its own"


def test_how_it_ended_is_told_apart(writer, store):
    for phase, error, drained, expected in (
        ("stopped", None, False, ("finished", None)),
        ("stopped", None, True, ("drained", "ops: upgrade")),
        ("failed", RowError("too big"), False, ("failed", "RowError: too big")),
        ("failed", ValueError("hunter2"), False, ("failed", "ValueError: see the driver's log")),
        ("failed", ValueError("[STREAM_FAILED] hunter2"), False, ("failed", SPARKS)),
        ("failed", SupersededError("x"), False, ("superseded", "SupersededError: x")),
    ):
        each = writer()
        each.start()
        if drained:
            request_drain(store, requested_by="ops", reason="upgrade")
            assert each.draining.wait(60)
        each.stop(phase, error)
        beat = read_heartbeat(store)
        assert (beat.end, beat.reason) == expected
        assert beat.drained_by == ("ops" if drained else None)


def test_an_old_heartbeat_that_comes_late_is_put_right_by_the_next_beat(writer, store):
    writer(2)
    said = read_heartbeat(store)
    assert said is not None
    write_heartbeat(store, msgspec.structs.replace(said, term=1))
    _until(lambda: read_heartbeat(store).term == 2)


def _until(reached) -> None:
    deadline = time.monotonic() + 300
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_beat_that_takes_long_does_not_land_on_the_last_one(writer, store, monkeypatch):
    """Then nobody would ever read that the driver stopped."""
    entered, landed_or_waits = threading.Event(), threading.Event()
    real = CheckpointStore.put

    def put(self, path, data):
        is_beat = path == "eos/driver.json"
        if is_beat and threading.current_thread().name == "airflow-eos-heartbeat":
            entered.set()
            landed_or_waits.wait(60)
        real(self, path, data)
        if is_beat:
            landed_or_waits.set()

    @contextmanager
    def waiting(lock):
        landed_or_waits.set()
        with lock:
            yield

    each = writer(1)
    monkeypatch.setattr(CheckpointStore, "put", put)
    assert entered.wait(60)
    monkeypatch.setattr(each, "_beating", waiting(each._beating))
    each.stop("stopped")
    each._thread.join()
    assert read_heartbeat(store).phase == "stopped"


def test_a_heartbeat_that_a_disk_has_damaged_is_written_anew(writer, store):
    store.put("eos/driver.json", b"")
    writer(take_term(store, taken_by="a").term.number)
    assert read_heartbeat(store).term == 1


def test_it_beats_faster_while_somebody_stands_by_and_says_so_before_it_slows_down(
    store, monkeypatch
):
    """Its own silence is counted by what it said last: the slower pace is told, and then kept."""
    clock = [0.0]
    writer = BeatLoop(store, application_id="local-1", trigger=timedelta(seconds=1))
    monkeypatch.setattr(writer._own, "_stood_by", Standstill(lambda: clock[0]))
    told = []

    def beat() -> None:
        writer._beat()
        told.append(read_heartbeat(store).interval_ms)

    beat()
    store.put("eos/standbys/s.json", b"it stands by")
    beat()
    clock[0] += 7  # it has died: what it says stands still
    beat()
    assert told == [2000, 1000, 2000]
    assert writer._own.interval == timedelta(seconds=2)
