"""A store that never answers must hold neither the list nor the threads of the web server."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from airflow_eos.page.board import Answers


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def dead():
    """A question that is answered when the test is over."""
    over = threading.Event()
    yield lambda: over.wait(600) and "late"
    over.set()


def test_one_that_is_not_answered_keeps_nobody_from_the_others(clock, dead):
    answers: Answers[Any] = Answers(2, within_s=0.2, fresh_s=lambda _: 3.0, clock=clock)
    begun = time.monotonic()
    while (told := answers.of({"dead": dead, "well": lambda: "here"})) != {"well": "here"}:
        assert told == {}, "on a busy machine nobody answers in time"
    assert time.monotonic() - begun < 300


def test_a_store_with_more_pipelines_than_threads_keeps_nobody_from_the_others(clock, dead):
    answers: Answers[Any] = Answers(2, within_s=0.05, fresh_s=lambda _: 3.0, clock=clock)
    asked = {**{str(n): dead for n in range(9)}, "well": lambda: "here"}
    begun = clock.now
    while answers.of(asked) != {"well": "here"}:
        clock.now += 11
        assert clock.now < begun + 800 * 11


def test_threads_that_were_held_up_are_no_more_than_asked_for_when_they_are_free(clock):
    over = threading.Event()
    answers: Answers[Any] = Answers(2, within_s=0.05, fresh_s=lambda _: 3.0, clock=clock)
    slow = {str(n): lambda: over.wait(600) for n in range(8)}
    patient = time.monotonic() + 300
    while answers._pool._there < 8:
        answers.of(slow)
        clock.now += 11
        assert time.monotonic() < patient
    over.set()
    while len(answers.of(slow)) < 8 or answers._pool._there > 2:
        assert time.monotonic() < patient


def test_a_question_is_asked_once_at_a_time_whoever_asks(clock):
    answers: Answers[Any] = Answers(4, within_s=0.05, fresh_s=lambda _: 3.0, clock=clock)
    asked, go_on = [], threading.Event()

    def question():
        asked.append(1)
        go_on.wait(600)
        return "here"

    for _ in range(5):
        assert answers.of({"it": question}) == {}
    go_on.set()
    patient = time.monotonic() + 300
    while not answers.of({"it": question}):
        assert time.monotonic() < patient
    assert asked == [1]


def test_an_answer_stands_for_its_time_and_an_older_one_while_the_next_is_late(clock, dead):
    answers: Answers[Any] = Answers(2, within_s=300, fresh_s=lambda _: 3.0, clock=clock)
    assert answers.of({"it": lambda: "first"}) == {"it": "first"}
    clock.now = 2.9
    assert answers.of({"it": lambda: "second"}) == {"it": "first"}
    clock.now = 3.1
    assert answers.of({"it": lambda: "second"}) == {"it": "second"}
    clock.now = 6.5
    answers._within_s = 0.1
    assert answers.of({"it": dead}) == {"it": "second"}


def test_one_of_a_moment_ago_is_given_rather_than_waited_for_and_an_old_one_is_not(clock):
    answers: Answers[Any] = Answers(2, within_s=300, fresh_s=lambda _: 3.0, clock=clock)
    assert answers.of({"it": lambda: "first"}) == {"it": "first"}
    go_on = threading.Event()
    clock.now = 10
    assert answers.of({"it": lambda: go_on.wait(600) and "second"}) == {"it": "first"}
    clock.now = 100
    threading.Timer(0.5, go_on.set).start()
    assert answers.of({"it": lambda: "never asked"}) == {"it": "second"}


def test_what_is_forgotten_while_it_is_asked_does_not_come_back(clock):
    """Somebody has drained: the answer that was under way is of the time before."""
    answers: Answers[Any] = Answers(2, within_s=0.05, fresh_s=lambda _: 99.0, clock=clock)
    go_on = threading.Event()
    before = lambda: go_on.wait(600) and "before"  # noqa: E731
    assert answers.of({"it": before}) == {}
    answers.forget("it")
    go_on.set()
    answers._within_s = 300
    assert answers.of({"it": lambda: "after"}) == {"it": "after"}


def test_what_a_question_raises_is_raised_once_and_asked_again(clock):
    answers: Answers[Any] = Answers(1, within_s=300, fresh_s=lambda _: 3.0, clock=clock)
    with pytest.raises(ValueError, match="wrong"):
        answers.of({"it": lambda: int("wrong")})
    assert answers.of({"it": lambda: 1}) == {"it": 1}


def test_a_question_that_is_never_answered_keeps_no_process_from_ending():
    program = """
import threading
from airflow_eos.page.board import Answers
answers = Answers(1, within_s=0.05, fresh_s=lambda _: 1.0)
answers.of({"dead": threading.Event().wait})
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
