"""A connection that nobody used for long may be gone: its server closed it, or what is between."""

from __future__ import annotations

import time

IDLE_S = 10.0
"""After so long nothing is asked before it is known that the connection still stands."""


class Idle:
    """When a connection was used last."""

    def __init__(self) -> None:
        self._used_at = time.monotonic()

    def ends(self) -> bool:
        """Whether it was long, until now."""
        before, self._used_at = self._used_at, time.monotonic()
        return self._used_at - before > IDLE_S
