"""Close a resource if passing it to its new owner raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar


class Closable(Protocol):
    """A connection, or what holds one."""

    def close(self) -> object:
        """Let go of it."""


T = TypeVar("T", bound=Closable)


@contextmanager
def closed_on_error(opened: T) -> Iterator[T]:
    """``opened``, which stays open unless the block raises."""
    try:
        yield opened
    except BaseException:
        opened.close()
        raise
