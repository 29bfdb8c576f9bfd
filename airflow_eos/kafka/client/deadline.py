"""How long to go on asking, and how long to wait in between: once, for all that is asked again.

Nowhere else in this room does time pass for whoever asks again, so the model of ``tests/model``
can step it: there a pause costs nothing, and three of them use up a minute.

Not with tenacity, which repeats one function until it succeeds. What is asked again here becomes
less with each round (those that were answered are left out), has what is left as its own timeout,
and is named in the error. With tenacity each of these would be a callback, and its clock one more
that the model has to step.
"""

from __future__ import annotations

import random
import time

from airflow_eos.tally import WAITS

ANSWER_S = 10.0
"""An answer that takes longer counts as lost: a stopped broker's role has moved by then."""
SHORTLY_S = 0.002
"""The first pause where the answer is likely to be there in a moment."""
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.25


class Deadline:
    """A moment in so many seconds, and the pauses until then, each twice as long as the last."""

    __slots__ = ("_ends_at", "_pause_s", "_seconds")

    def __init__(self, seconds: float, *, first_pause_s: float = _FIRST_PAUSE_S) -> None:
        self._seconds = seconds
        self._ends_at = time.monotonic() + seconds
        self._pause_s = first_pause_s

    def __str__(self) -> str:
        """For the error: how long was allowed."""
        return f"{self._seconds:g} s"

    @property
    def expired(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self._ends_at

    @property
    def remaining(self) -> float:
        """Seconds that are left, never zero, which means "no limit" to those who are given it."""
        return max(self._ends_at - time.monotonic(), 0.001)

    @property
    def answer_s(self) -> float:
        """How long to wait for one answer: at most :data:`ANSWER_S`."""
        return min(self.remaining, ANSWER_S)

    def pause(self) -> bool:
        """Wait before asking again; False, at once, where the time would be up by then."""
        if time.monotonic() + self._pause_s > self._ends_at:
            return False
        WAITS["kafka"] += 1
        wait(self._pause_s * random.uniform(0.8, 1.2))  # noqa: S311 - only spreads retries
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        return True


def wait(seconds: float) -> None:
    """Let that much time pass: for what takes its time whatever was allowed."""
    time.sleep(seconds)
