"""Questions that take their time: each asked once at a time, and its answer kept for a moment.

Whoever asks waits for so long and no longer, and where there is an answer of a moment ago, hardly
at all. A question that is not answered by then goes on by itself, and who asks next may have the
answer. So neither a store nor a broker that does not answer
can hold the threads of the web server, which Airflow's own routes need.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, wait
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

MOMENT_S = 15.0
"""So young an answer is given rather than waited for."""
GLANCE_S = 0.3
"""So long its successor is waited for all the same."""


class _Threads:
    """A pool of threads that nobody waits for when the process ends.

    Those of ``ThreadPoolExecutor`` are joined then: a store that does not answer would keep a
    server from stopping.
    """

    def __init__(self, count: int) -> None:
        self._left = count
        self._asked: SimpleQueue[tuple[Future[None], Callable[[], None]]] = SimpleQueue()

    def submit(self, question: Callable[[], None]) -> Future[None]:
        """Ask it when a thread is free; one caller at a time."""
        future: Future[None] = Future()
        self._asked.put((future, question))
        if self._left > 0:
            self._left -= 1
            threading.Thread(target=self._work, name="eos-page", daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            future, question = self._asked.get()
            try:
                future.set_result(question())
            except BaseException as error:  # noqa: BLE001 - whoever waits is told
                future.set_exception(error)


@dataclass
class _Kept(Generic[T]):
    answer: T | None = None
    at_s: float = float("-inf")
    until_s: float = float("-inf")
    running: Future[None] | None = None


class Answers(Generic[T]):
    """The newest answer to each question, by its key.

    Args:
        threads: how many questions are asked at a time.
        within_s: how long a caller waits.
        fresh_s: for how many seconds an answer is given again.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        threads: int,
        *,
        within_s: float,
        fresh_s: Callable[[T], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._within_s, self._fresh_s, self._clock = within_s, fresh_s, clock
        self._pool = _Threads(threads)
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept[T]] = {}

    def of(self, questions: Mapping[str, Callable[[], T]]) -> dict[str, T]:
        """The answers that are known in time; older ones stand for those that are late.

        What a question raises, it raises here, once.
        """
        with self._lock:
            kept = {key: self._kept.setdefault(key, _Kept()) for key in questions}
            running = {
                key: future
                for key, each in kept.items()
                if (future := self._asked(each, questions[key])) is not None
            }
        young = self._clock() - MOMENT_S
        unknown = [future for key, future in running.items() if kept[key].at_s < young]
        wait(unknown, timeout=self._within_s)
        wait(running.values(), timeout=min(GLANCE_S, self._within_s))
        for future in running.values():
            if future.done():
                future.result()
        return {key: each.answer for key, each in kept.items() if each.answer is not None}

    def forget(self, key: str) -> None:
        """Ask anew next time: somebody has just changed something.

        Also where the question is being asked: its answer may be of the time before.
        """
        with self._lock:
            self._kept.pop(key, None)

    def _asked(self, kept: _Kept[T], question: Callable[[], T]) -> Future[None] | None:
        """The asking that is under way, begun now where the answer is too old; else None."""
        if kept.running is not None and not kept.running.done():
            return kept.running
        if self._clock() < kept.until_s:
            return None

        def ask() -> None:
            answer = question()
            kept.answer, kept.at_s = answer, self._clock()
            kept.until_s = kept.at_s + self._fresh_s(answer)

        kept.running = self._pool.submit(ask)
        return kept.running
