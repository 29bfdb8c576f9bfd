"""Alive and silent, by the reader's own clock."""

from __future__ import annotations

import msgspec
import pytest

from airflow_eos.core.checkpoint import CheckpointStore, take_term, write_heartbeat
from airflow_eos.errors import CheckpointFormatError, StoreError
from airflow_eos.ops.supervision.heartbeat_monitor import HeartbeatReading
from tests.unit.ops.supervision.lives import beat


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(tmp_path) -> CheckpointStore:
    return CheckpointStore.open(tmp_path)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_one_look_tells_nothing_and_a_change_tells_that_it_lives(store, clock):
    pulse = HeartbeatReading(store, clock=clock)
    write_heartbeat(store, beat(term=None))
    assert pulse.look().living is None
    write_heartbeat(store, beat(term=None, beat_at_ms=2000))
    assert pulse.look().living is not None
    clock.now += 1
    assert pulse.look().living is not None, "between two beats it lives on"


def test_a_damaged_heartbeat_is_no_answer_while_its_driver_is_seen_to_run(store, clock):
    """The watch of a healthy app ended by it, and the app with the watch."""
    pulse = HeartbeatReading(store, clock=clock)
    write_heartbeat(store, beat(term=None))
    pulse.look()
    store.put("eos/driver.json", b"\0" * 80)
    clock.now += 3600
    assert pulse.look_if_it_answers(refused=False) is None
    assert pulse.look_if_it_answers(refused=True) is None, "it may write another one"
    clock.now += 6
    with pytest.raises(CheckpointFormatError):
        pulse.look_if_it_answers(refused=True)
    write_heartbeat(store, beat(term=None, beat_at_ms=2000))
    seen = pulse.look_if_it_answers(refused=False)
    assert seen is not None
    assert (seen.living is not None, seen.silent_s) == (True, 0.0)


def test_silence_is_counted_from_the_last_change_whatever_the_heartbeat_says_of_the_time(
    store, clock
):
    pulse = HeartbeatReading(store, clock=clock)
    write_heartbeat(store, beat(term=None, beat_at_ms=10**14))
    pulse.look()
    for _ in range(4):
        clock.now += 1.5
        seen = pulse.look()
    assert seen.silent_s == 6.0
    write_heartbeat(store, beat(term=None, beat_at_ms=1))
    assert (pulse.look().silent_s, pulse.look().moved) == (0.0, True)


def test_a_reader_that_slept_itself_has_not_seen_the_driver_be_silent(store, clock):
    pulse = HeartbeatReading(store, every_s=1, clock=clock)
    write_heartbeat(store, beat(term=None))
    pulse.look()
    clock.now += 3600
    assert pulse.look().silent_s == 2.0


def test_while_the_store_does_not_answer_nobody_is_silent(store, clock, monkeypatch):
    pulse = HeartbeatReading(store, clock=clock)
    write_heartbeat(store, beat(term=None))
    pulse.look()
    clock.now += 2
    assert pulse.look().silent_s == 2

    def away(*_):
        raise StoreError("no answer")

    with monkeypatch.context() as broken:
        broken.setattr(CheckpointStore, "get", away)
        clock.now += 2
        with pytest.raises(StoreError):
            pulse.look()
    clock.now += 2
    assert pulse.look().silent_s == 0
    clock.now += 2
    assert pulse.look().silent_s == 2


def test_a_heartbeat_of_a_former_term_is_nobodys(store, clock):
    pulse = HeartbeatReading(store, clock=clock)
    first = take_term(store, taken_by="a").term.number
    write_heartbeat(store, beat("stopped", term=first))
    assert pulse.look().has_ended
    take_term(store, taken_by="b")
    seen = pulse.look()
    assert (seen.current, seen.has_ended, seen.living, seen.silent_s) == (None, False, None, 0)
    write_heartbeat(store, msgspec.structs.replace(beat(), term=2))
    assert pulse.look().living is not None


def test_one_of_a_former_term_that_goes_on_beating_resets_no_silence(store, clock):
    pulse = HeartbeatReading(store, clock=clock)
    take_term(store, taken_by="a")
    write_heartbeat(store, beat(term=1))
    take_term(store, taken_by="b")
    pulse.look()
    for at in range(1, 5):
        clock.now += 2
        write_heartbeat(store, beat(term=1, beat_at_ms=at))
        seen = pulse.look()
    assert (seen.silent_s, seen.moved) == (8, False)
