"""A connection that is lost says nothing about what the server did, so the same is asked again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from airflow_eos.errors import StoreError

T = TypeVar("T")

_PAUSES_S = (0.0, 0.1, 0.5, 1.0, 2.0)


class LostError(StoreError):
    """The connection is gone, and with it the reply."""


def answered(act: Callable[[], T], *, anew: Callable[[], None], timeout_s: float) -> T:
    """Call ``act``, again whenever the connection is lost.

    Args:
        act: may be repeated at any point of it, changing nothing twice.
        anew: lets go of the connection that was lost.
        timeout_s: seconds in which the server must answer again, from when it was lost first.

    Raises:
        StoreError: no answer within the time; what the server did is not known.
    """
    deadline = None
    tries = 0
    while True:
        try:
            return act()
        except LostError as lost:
            anew()
            now = time.monotonic()
            deadline = now + timeout_s if deadline is None else deadline
            if now > deadline:
                raise StoreError(
                    f"{lost} Asked again for {timeout_s:.0f} s, without a reply. Nothing was "
                    "guessed; restore it and run the same step again, which finds out."
                ) from lost.__cause__
        time.sleep(_PAUSES_S[min(tries, len(_PAUSES_S) - 1)])
        tries += 1
