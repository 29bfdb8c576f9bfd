"""Whether a driver is alive is seen by the reader's own clock; whom a watchdog looks at."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from airflow_eos.cli.recovery import _require_silent
from airflow_eos.core.checkpoint import (
    CheckpointStore,
    PipelineIdentity,
    claim,
    take_term,
    write_heartbeat,
)
from airflow_eos.core.checkpoint import liveness as alive
from airflow_eos.core.checkpoint.heartbeat import StartedBy
from airflow_eos.core.checkpoint.liveness import (
    LivenessProbe,
    SignOfLife,
    note_process_end,
    process_mark,
    read_sign,
    signs_of_life,
    with_its_end,
)
from airflow_eos.core.protocol.participant import Member, Owner, Ownership
from airflow_eos.core.recovery import execute as run
from airflow_eos.errors import ConfigurationError, PipelineAliveError, Remedy
from tests.support.beats import beating, heartbeat

QUICK = heartbeat(interval_ms=30)
SKEWS_MS = [0, 7_000, -7_000, 600_000, -600_000]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watch(clock) -> LivenessProbe:
    return LivenessProbe(clock)


@pytest.fixture
def store(tmp_path) -> CheckpointStore:
    return CheckpointStore.open(tmp_path)


def after(beat, ms=2000):
    return msgspec.structs.replace(beat, beat_at_ms=beat.beat_at_ms + ms)


def looks(watch, clock, *signs, every_s=2.0):
    answers = []
    for sign in signs:
        answers.append(watch.hold(sign))
        clock.now += every_s
    return answers


@pytest.mark.parametrize("skew_ms", SKEWS_MS)
def test_a_heartbeat_that_changes_is_alive_and_one_that_stands_is_dead_whatever_clocks_say(
    clock, skew_ms
):
    beat = heartbeat(beat_at_ms=1_000_000_000 + skew_ms)
    one, two = SignOfLife(beat, 1), SignOfLife(after(beat), 1)
    first, second = looks(LivenessProbe(clock), clock, one, two)
    assert first is None
    assert second is not None
    assert "gave a heartbeat while it was looked at" in second[0]
    assert looks(LivenessProbe(clock), clock, one, one, one, one) == [None, None, None, ()]


def test_what_says_itself_that_it_ended_needs_no_second_look(watch):
    assert watch.hold(SignOfLife(heartbeat("failed", term=2), 2)) == ()


def test_a_planned_batch_without_a_trace_of_ours_does_not_say_that_nobody_runs(watch, clock):
    """Spark's own sink may write it; or what our driver has left was removed while it runs."""
    assert SignOfLife(None, 0).is_over
    one, two = SignOfLife(None, 0, planned=7), SignOfLife(None, 0, planned=8)
    assert looks(watch, clock, one, two) == [
        None,
        ("offsets/8 was written while it was looked at",),
    ]


def test_an_owner_whose_heartbeat_was_removed_is_not_known_to_be_dead(store, monkeypatch):
    take_term(store, taken_by="a driver that runs")
    name = Ownership(
        called="prefix",
        owner=Owner("id", store.location),
        notes=(),
        give_up=Remedy(start=True),
        move=Remedy(start=True),
    )
    monkeypatch.setattr(
        "airflow_eos.core.checkpoint.liveness.signs_of_life", lambda _: ("offsets/8 was written",)
    )
    with pytest.raises(PipelineAliveError, match="offsets/8"):
        _require_silent(name, None, moved=False, force=False)


def test_a_newer_driver_that_has_not_beaten_yet_is_not_known(watch, clock):
    """The one before has ended, in words; whether this one lives, its own beat will show."""
    ended = SignOfLife(heartbeat("stopped", term=2), 3)
    assert looks(watch, clock, ended, ended, ended, ended) == [None, None, None, ()]


def test_a_former_driver_that_beats_on_says_nothing_of_the_newest(watch, clock):
    old = heartbeat(term=1)
    signs = [SignOfLife(after(old, 2000 * n), 2) for n in range(4)]
    assert looks(watch, clock, *signs) == [None, None, None, ()]


def test_a_batch_that_is_planned_meanwhile_is_a_sign_though_no_beat_comes_through(watch, clock):
    beat = heartbeat()
    _, second = looks(watch, clock, SignOfLife(beat, 1, 4, 3), SignOfLife(beat, 1, 4, 4))
    assert second == ("commits/4 was written while it was looked at",)


def test_who_slept_himself_has_not_seen_the_driver_be_silent(watch, clock):
    sign = SignOfLife(heartbeat(), 1)
    assert looks(watch, clock, sign, sign, every_s=3600) == [None, None]


def test_a_change_within_an_hour_nobody_looked_is_not_one_of_now(watch, clock):
    beat = heartbeat()
    assert looks(watch, clock, SignOfLife(beat, 1), SignOfLife(after(beat), 1), every_s=3600) == [
        None,
        None,
    ]


def test_where_nobody_has_ever_run_nothing_is_waited_for(store):
    assert signs_of_life(store) == ()


def test_a_driver_that_took_a_term_and_has_not_beaten_is_waited_for(store, monkeypatch):
    monkeypatch.setattr(alive, "UNTOLD_INTERVAL_S", 0.05)
    take_term(store, taken_by="test")
    assert signs_of_life(store, within_s=0) is None
    assert signs_of_life(store) == ()


def test_one_command_looks_again_until_it_shows(store):
    write_heartbeat(store, QUICK)
    assert signs_of_life(store, within_s=0) is None, "one look does not tell"
    assert signs_of_life(store) == ()
    with beating(store, after(QUICK)):
        assert signs_of_life(store)


def test_what_was_seen_to_be_silent_is_not_waited_for_again_until_it_changes(store):
    write_heartbeat(store, QUICK)
    assert signs_of_life(store) == ()
    assert signs_of_life(store, within_s=0) == ()
    write_heartbeat(store, after(QUICK))
    assert signs_of_life(store, within_s=0) is None


# --- Who is looked at by a watchdog: nobody who takes part is ever left out -----------------------


TOTALS = Member("totals", "postgres", {"name": "etl.totals", "schema": "eos", "mark": "1"})
ORDERS = Member("orders", "kafka", {"cluster_id": "c", "transactional_id_prefix": "etl"})
BESIDES = Member(run.NOBODYS, "kafka", {"transactional_id_prefix": "etl"})


@pytest.mark.parametrize(
    ("named", "prefix", "asked"),
    [
        ([TOTALS], None, [TOTALS]),
        ([TOTALS], "etl", [TOTALS, BESIDES]),
        ([TOTALS, ORDERS], "etl", [TOTALS, ORDERS]),
        ([], "etl", [BESIDES]),
    ],
)
def test_all_that_take_part_are_looked_at_whatever_the_prefix(
    tmp_path, monkeypatch, named, prefix, asked
):
    store = CheckpointStore.open(tmp_path)
    if named:
        pipeline = PipelineIdentity(
            id="1" * 32, participants=tuple(named), created_at_ms=1, created_by="driver 1"
        )
        claim(store, pipeline)
    reached: list[Any] = []
    monkeypatch.setattr(run, "connect", lambda members, *_, **__: reached.extend(members))
    run.watched(store, None, prefix=prefix)
    assert reached == asked


def test_nobody_to_look_at_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="names no pipeline"):
        run.watched(CheckpointStore.open(tmp_path), None)


# --- a driver whose process is seen to be gone ----------------------------------------------------


@pytest.fixture
def killed(tmp_path):
    """A checkpoint whose driver was killed on this machine a moment ago, and its last heartbeat."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        store = CheckpointStore.open(tmp_path)
        last = heartbeat("preparing", term=1, pid=process.pid, process=process_mark(process.pid))
        write_heartbeat(store, last)

        def kill() -> None:
            process.kill()
            process.wait()

        yield SimpleNamespace(store=store, last=last, kill=kill)
    finally:
        process.kill()
        process.wait()


def never(_: float) -> None:
    raise AssertionError("nobody needs to wait for silence")


def test_a_driver_that_was_killed_here_is_dead_at_once(killed):
    """`plan` waited for six seconds, a recovery too, and the page said that it was alive."""
    killed.kill()
    assert signs_of_life(killed.store, sleep=never) == ()
    watch = LivenessProbe()
    assert watch.hold(with_its_end(killed.store, read_sign(killed.store))) == ()


def test_a_driver_that_is_there_is_not_alive_before_it_was_seen_to_change(killed):
    """Its process may hang."""
    assert LivenessProbe().hold(with_its_end(killed.store, read_sign(killed.store))) is None


def test_the_last_word_of_a_driver_that_ended_while_it_was_looked_at_counts(killed):
    """It writes that it stopped, and ends: of the look before, its process would be gone."""
    sign = read_sign(killed.store)
    write_heartbeat(killed.store, msgspec.structs.replace(killed.last, phase="stopped"))
    killed.kill()
    found = with_its_end(killed.store, sign)
    assert (found.gone, found.current.phase) == (None, "stopped")


def test_the_end_that_whoever_started_it_has_noted_needs_no_silence(tmp_path):
    store = CheckpointStore.open(tmp_path)
    us = StartedBy(dag_id="d", task_id="t", run_id="r", map_index=-1, submission="s1")
    write_heartbeat(store, heartbeat("preparing", term=1, started_by=us))
    note_process_end(store, "s1", "it was killed")
    assert signs_of_life(store, sleep=never) == ()


def test_a_former_drivers_process_says_nothing_of_the_newest(killed):
    killed.kill()
    for _ in range(2):
        take_term(killed.store, taken_by="another")
    assert with_its_end(killed.store, read_sign(killed.store)).gone is None
