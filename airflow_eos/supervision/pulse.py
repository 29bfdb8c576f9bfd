"""A heartbeat by the reader's own clock: was it seen to change, for how long has it stood still?

What a heartbeat says of the time is its driver's; clocks differ, and machines sleep. So nothing is
compared with it: a driver lives whose heartbeat was *seen* to change between two looks, and is dead
once it was seen to stand still for long enough. A look that got no answer says neither.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import obstore.exceptions as failures

from airflow_eos.checkpoint import newest_term, read_heartbeat
from airflow_eos.checkpoint.heartbeat import ENDED
from airflow_eos.errors import StoreError

if TYPE_CHECKING:
    from airflow_eos.checkpoint import CheckpointStore, Heartbeat

log = logging.getLogger(__name__)

_REFUSALS = (failures.PermissionDeniedError, failures.UnauthenticatedError, PermissionError)

REFUSED_AT_MOST = 3
"""Looks that a store may refuse one after another: keys expire, and rights take time to spread."""

DEFAULT_INTERVAL_S = 2.0
"""How often a driver is taken to beat that has not told yet."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look found, held against the looks before.

    Attributes:
        heartbeat: the last one; None where there is none.
        term: the newest that was taken; 0 where there is none.
        moved: whether the heartbeat was seen to change.
        silent_s: for how many seconds it, and the term, were seen to stand still.
    """

    heartbeat: Heartbeat | None
    term: int = 0
    moved: bool = False
    silent_s: float = 0.0

    @property
    def current(self) -> Heartbeat | None:
        """The heartbeat, if it is the newest driver's; a former one's is a hint of nothing."""
        heartbeat = self.heartbeat
        if heartbeat is None or (heartbeat.term is not None and heartbeat.term < self.term):
            return None
        return heartbeat

    def is_of(self, submission: str) -> bool:
        """Whether the newest driver is this start of the app."""
        return self.current is not None and self.current.submission == submission

    @property
    def living(self) -> Heartbeat | None:
        """The newest driver's, where it has not said that it ended and was seen to change."""
        current = self.current
        return current if current is not None and self.moved and not self.is_over else None

    @property
    def is_over(self) -> bool:
        """Whether the newest driver has said that it ended."""
        return self.current is not None and self.current.phase in ENDED

    @property
    def interval_s(self) -> float:
        """How often the driver means to beat."""
        beat = self.heartbeat
        return beat.interval_ms / 1000 if beat is not None else DEFAULT_INTERVAL_S


def is_refusal(error: BaseException) -> bool:
    """Whether a store has answered: another hundred questions with these keys get the same."""
    return isinstance(error, StoreError) and isinstance(error.__cause__, _REFUSALS)


def read_pulse(store: CheckpointStore) -> tuple[int, Heartbeat | None]:
    """The newest term and the last heartbeat: one listing and one read.

    Raises:
        StoreError: no answer, which says nothing of the driver.
        CheckpointFormatError: the heartbeat is foreign, or of a newer release.
    """
    return newest_term(store), read_heartbeat(store)


class Pulse:
    """Looks at one checkpoint again and again; for one thread at a time.

    Args:
        store: the checkpoint.
        every_s: how often it is going to be asked.
        reopen: gives the store with the keys of now, once it has refused those of before.
        clock: seconds; need not be a time of day.
    """

    def __init__(
        self,
        store: CheckpointStore,
        *,
        every_s: float = 1.0,
        reopen: Callable[[], CheckpointStore] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        """As it was opened last."""
        self._reopen = reopen
        self._refused = 0
        self._every_s = every_s
        self._clock = clock
        self._last: Seen | None = None
        self._looked_at: float | None = None

    def look(self) -> Seen:
        """Read, and hold it against the looks before.

        Raises:
            StoreError, CheckpointFormatError: see :func:`read_pulse`.
        """
        try:
            term, heartbeat = read_pulse(self.store)
        except StoreError as error:
            self.no_answer()
            self._refused = self._refused + 1 if is_refusal(error) else 0
            if self._refused:
                self._open_again()
            raise
        self._refused = 0
        return self.hold(term, heartbeat)

    def look_if_it_answers(self, *, refused: bool) -> Seen | None:
        """As :meth:`look`; None where the store did not answer, which says nothing of an app.

        Args:
            refused: raise where it answers again and again that we may not look.
        """
        try:
            return self.look()
        except StoreError as error:
            if refused and self._refused >= REFUSED_AT_MOST:
                raise
            log.warning("The checkpoint did not answer; asking again: %s", error)
            return None

    def hold(self, term: int, heartbeat: Heartbeat | None) -> Seen:
        """Hold what somebody has just read against the looks before."""
        now = self._clock()
        self._last = self._held_against(self._last, term, heartbeat, now)
        self._looked_at = now
        return self._last

    def forget(self) -> None:
        """Begin anew: what moved until now says nothing of an app that is about to be started."""
        self._last = self._looked_at = None

    def no_answer(self) -> None:
        """Count silence anew: the driver may not have reached the store either."""
        self._looked_at = None
        if self._last is not None:
            self._last = Seen(self._last.heartbeat, self._last.term, self._last.moved)

    def _open_again(self) -> None:
        try:
            if self._reopen is not None:
                self.store = self._reopen()
        except Exception:  # whatever a connection says: the old keys are tried again
            log.exception("The checkpoint could not be opened again")

    def _held_against(
        self, last: Seen | None, term: int, heartbeat: Heartbeat | None, now: float
    ) -> Seen:
        if last is None:
            return Seen(heartbeat, term)
        if heartbeat != last.heartbeat and Seen(heartbeat, term).current is not None:
            return Seen(heartbeat, term, moved=True)
        if term != last.term:
            return Seen(heartbeat, term)
        # One of a former term that still changes says nothing of the newest driver.
        gap_s = 0.0 if self._looked_at is None else now - self._looked_at
        # Who slept himself has not seen the driver be silent meanwhile.
        silent_s = last.silent_s + min(gap_s, max(last.interval_s, 2 * self._every_s))
        return Seen(heartbeat, term, last.moved, silent_s)
