"""The watch of an app by the triggerer, its result, and its shared threads; free of Airflow."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, Self, TypeVar

from airflow_eos.core.arguments import Cancel
from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.delivery.policy import Failure
from airflow_eos.errors import EosError
from airflow_eos.ops.supervision.exit_status import ExitKind, ExitStatus, Patience, ended
from airflow_eos.ops.supervision.heartbeat_monitor import (
    ClusterManager,
    HeartbeatObservation,
    ask_to_drain,
    kill_if_it_beats,
)
from airflow_eos.ops.supervision.rules import Rules

log = logging.getLogger(__name__)

_PAUSES_S = (0, 1, 2, 4)
"""The pauses before each try of a drain request, on top of the store's own retries."""


@dataclass(frozen=True, slots=True)
class AppResult:
    """The result of watching an app; ``ended`` is None where it lives on, watched elsewhere.

    Attributes:
        ended: how the app ended, where it has.
        failures: the failures before this start, each answered with a restart.
        began_s: when the app was started or adopted, in seconds since the epoch.
    """

    submission: str
    ended: ExitStatus | None
    failures: tuple[Failure, ...]
    began_s: float

    @classmethod
    def of_event(cls, event: Mapping[str, Any]) -> Self:
        """Read a trigger's event; ``ended`` is None where the trigger could not go on watching."""
        if event.get("raised"):
            log.warning("The triggerer stopped watching (%(raised)s): %(error)s", event)
            ended = None
        else:
            ended = ExitStatus(ExitKind[event["end"]], event["found"], event.get("hopeless", False))
        return cls(
            submission=event["submission"],
            ended=ended,
            failures=tuple(Failure(*each) for each in event["failures"]),
            began_s=event["began_s"],
        )


@dataclass(frozen=True, slots=True)
class TriggerPoll:
    """One app to watch; a value that survives the triggerer's restart.

    Attributes:
        failures: (began, failed) of the failures before this start, in seconds since the epoch.
        began_s: when the app was started or adopted, in seconds since the epoch.
        silent_s: how long the app's heartbeat may stand still.
        cancel: what becomes of the app when a user stops the task.
    """

    checkpoint: str
    submission: str
    failures: tuple[tuple[float, float], ...]
    began_s: float
    silent_s: float
    cancel: Cancel
    manager: ClusterManager = field(default_factory=ClusterManager)

    @classmethod
    def of(cls, outcome: AppResult, *, checkpoint: str, rules: Rules) -> Self:
        """Make the watch that goes on where a run has left off, by the run's rules."""
        failures = tuple((each.started_at, each.failed_at) for each in outcome.failures)
        return cls(
            checkpoint,
            outcome.submission,
            failures,
            outcome.began_s,
            rules.patience.silent_s,
            rules.cancel,
            rules.manager,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the watch in JSON's own types, for a trigger."""
        return asdict(self) | {"failures": [list(each) for each in self.failures]}

    def judge(self, seen: HeartbeatObservation, watched_s: float) -> dict[str, Any] | None:
        """Return the event where the app has ended, else None.

        Args:
            watched_s: seconds since the watch of the app began.
        """
        how = ended(seen, self.submission, None, Patience(self.silent_s, self.silent_s), watched_s)
        if how is None:
            return None
        return self._event(end=how.end.name, found=how.found, hopeless=how.hopeless)

    def unwatched(self, error: Exception) -> dict[str, Any]:
        """Return the event where the app cannot be watched any more; the app may live."""
        kind = type(error).__name__
        said = str(error) if isinstance(error, EosError) else f"{kind}, see the triggerer's log"
        return self._event(raised=kind, error=said)

    def _event(self, **said: Any) -> dict[str, Any]:
        fields = self.as_dict()
        return said | {name: fields[name] for name in ("submission", "failures", "began_s")}

    def stop(
        self, store: CheckpointStore, reason: str, sleep: Callable[[float], None] = time.sleep
    ) -> str:
        """Stop the app as ``cancel`` says, without waiting for its end; return what was done.

        No try follows: where the store does not answer, the request is retried for some seconds.
        """
        if self.cancel == "leave":
            return "the app goes on; the next try takes it over"
        asked = "it could not be asked to drain"
        for pause_s in _PAUSES_S:
            sleep(pause_s)
            if ask_to_drain(store, self.submission, reason):
                asked = "it was asked to drain"
                break
        if self.cancel == "drain":
            return asked
        # It was asked to drain all the same: the driver may be out of reach from here.
        return f"{asked}; {kill_if_it_beats(store, self.submission, self.manager)}"


T = TypeVar("T")

_WORKERS = 8
HELD_UP_S = 10.0
"""The seconds after which a busy thread counts as held up by a store that does not answer."""
_RELIEF_S = 1.0


class Threads:
    """A pool of daemon threads, which do not keep the process from ending.

    The threads of ``ThreadPoolExecutor`` are joined at the end: a store that does not answer would
    keep a server from stopping. A thread held up for long does not count towards ``count``:
    hundreds of pipelines in a store that does not answer must not hold up the others.
    """

    def __init__(self, count: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._count, self._clock = count, clock
        self._lock = threading.Lock()
        self._there, self._busy = 0, dict[int, float]()
        self._asked: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()

    def submit(self, question: Callable[[], T]) -> Future[T]:
        """Run a question when a thread is free."""
        future: Future[T] = Future()
        self._asked.put((future, question))
        self.relieve()
        return future

    def relieve(self) -> None:
        """Start threads for waiting questions, also in the place of those that are held up."""
        with self._lock:
            while self._at_hand() < self._count and self._idle() < self._asked.qsize():
                self._there += 1
                threading.Thread(target=self._work, name="airflow-eos-look", daemon=True).start()

    def _idle(self) -> int:
        return self._there - len(self._busy)

    def _at_hand(self) -> int:
        since_s = self._clock() - HELD_UP_S
        return self._there - sum(at < since_s for at in self._busy.values())

    def _work(self) -> None:
        me = threading.get_ident()
        while True:
            future, question = self._asked.get()
            with self._lock:
                self._busy[me] = self._clock()
            try:
                future.set_result(question())
            except BaseException as error:  # noqa: BLE001 - whoever waits is told
                future.set_exception(error)
            with self._lock:
                del self._busy[me]
                if self._idle() > self._count:
                    self._there -= 1
                    return


class SharedLooks:
    """Runs blocking reads in threads; callers that ask with an equal key share one running read.

    Used by one event loop. Nothing is remembered: each answer is read after its first asker asked.
    """

    def __init__(
        self, workers: int = _WORKERS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pool = Threads(workers, clock)
        self._waiting: dict[Hashable, Future[Any]] = {}

    async def ask(self, key: Hashable, read: Callable[[], T]) -> T:
        """Run ``read``, or wait for the running read of ``key``; raises what ``read`` raises."""
        future: Future[T] | None = self._waiting.get(key)
        if future is None or future.done():
            future = self._waiting[key] = self._pool.submit(read)
            future.add_done_callback(partial(self._forget, key))
        answer = asyncio.wrap_future(future)
        # By each waiter: where one store holds all threads up, no caller comes to ask anew.
        while not (await asyncio.wait({answer}, timeout=_RELIEF_S))[0]:
            self._pool.relieve()
        return answer.result()

    def _forget(self, key: Hashable, future: Future[Any]) -> None:
        """Drop a read that has ended, also where all who waited for it were cancelled."""
        if self._waiting.get(key) is future:
            self._waiting.pop(key, None)


LOOKS = SharedLooks()
"""The reads of all triggers of this process that watch an app."""
POLLS = SharedLooks()
"""The reads of all triggers that wait for a sensor or for settled batches, which take longer."""
