"""Looks at many checkpoints from one event loop: one thread pool, and one look for all who ask."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

T = TypeVar("T")

_WORKERS = 8


class SharedLooks:
    """Runs what blocks. Who asks for the same thing while somebody waits for it waits with him.

    Used by one event loop. Nothing is remembered: each answer is read after its first asker asked.
    """

    def __init__(self, workers: int = _WORKERS) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="airflow-eos-look")
        self._waiting: dict[Hashable, Future[Any]] = {}

    async def ask(self, key: Hashable, read: Callable[[], T]) -> T:
        """Read, or wait for whoever is reading the same ``key``; raises what ``read`` raises."""
        future: Future[T] | None = self._waiting.get(key)
        if future is None or future.done():
            future = self._waiting[key] = self._pool.submit(read)
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        finally:
            if future.done() and self._waiting.get(key) is future:
                del self._waiting[key]


LOOKS = SharedLooks()
"""Those of this process."""
