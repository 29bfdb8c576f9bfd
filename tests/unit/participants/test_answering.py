"""The time counts from when the server stopped answering, not from when the work began."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from airflow_eos.errors import StoreError
from airflow_eos.kinds.sql import participant as answering
from airflow_eos.kinds.sql.participant import LostError, answered


class Clock:
    """Of a server that answers after so many seconds each time; pauses take no time."""

    def __init__(self, *takes_s: float) -> None:
        self._takes: Iterator[float] = itertools.chain(takes_s, itertools.repeat(takes_s[-1]))
        self.now = 0.0
        self.calls = 0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def act(self, *, fails: int) -> str:
        self.now += next(self._takes)
        self.calls += 1
        if self.calls <= fails:
            raise LostError("The connection is gone.")
        return "done"


def test_a_long_act_that_a_deadlock_ended_is_done_again(monkeypatch: pytest.MonkeyPatch):
    clock = Clock(40.0)
    monkeypatch.setattr(answering, "time", clock)
    assert answered(lambda: clock.act(fails=1), anew=lambda: None, timeout_s=30) == "done"
    assert clock.calls == 2


def test_a_server_that_does_not_answer_for_the_time_is_given_up(monkeypatch: pytest.MonkeyPatch):
    clock = Clock(40.0, 10.0)
    monkeypatch.setattr(answering, "time", clock)
    with pytest.raises(
        StoreError, match=r"Asked again for 30 s, without a reply. Nothing was guessed"
    ):
        answered(lambda: clock.act(fails=99), anew=lambda: None, timeout_s=30)
    assert clock.now > 70
