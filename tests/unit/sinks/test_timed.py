"""The time that the tasks of a batch may take, without Spark: what is cancelled, and when."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_eos.delivery.batch_timeout import GovernedSink, within
from airflow_eos.errors import BatchTimeoutError

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
