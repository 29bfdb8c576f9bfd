"""One deadline for all that is asked again: it ends, and nobody waits beyond it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from airflow_eos.kafka.client import errors as deadline
from airflow_eos.kafka.client.errors import ANSWER_S, Deadline


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The module ``time`` of the deadlines; sleeping is noted and takes exactly as long."""
    now = SimpleNamespace(s=100.0, slept=[])

    def sleep(seconds: float) -> None:
        now.slept.append(seconds)
        now.s += seconds

    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: now.s, sleep=sleep))
    return now


def test_pauses_grow_to_a_quarter_of_a_second_and_end_before_the_time_is_up(clock):
    limit = Deadline(10)
    while limit.pause():
        pass
    assert clock.slept[0] < 0.03
    assert max(clock.slept) <= 0.25 * 1.2
    assert 9.7 < clock.s - 100 <= 10 + 0.25 * 0.2
    assert len(clock.slept) > 30


def test_no_pause_is_begun_that_would_outlast_the_time(clock):
    assert not Deadline(0).pause()
    assert not Deadline(0.001, first_pause_s=0.002).pause()
    assert clock.slept == []


def test_what_remains_is_never_zero_which_would_mean_no_limit(clock):
    limit = Deadline(2)
    assert (limit.remaining, limit.expired) == (2.0, False)
    clock.s += 5
    assert (limit.remaining, limit.expired) == (0.001, True)


def test_one_answer_is_waited_for_ten_seconds_at_most(clock):
    limit = Deadline(60)
    assert limit.answer_s == ANSWER_S
    clock.s += 55
    assert limit.answer_s == 5.0


def test_an_error_says_how_long_was_allowed(clock):
    assert f"within {Deadline(0.5)}, {Deadline(60.0)}" == "within 0.5 s, 60 s"
