"""Close a resource if passing it to its new owner raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar


class Closable(Protocol):
    """A connection, or an object that holds one."""

    def close(self) -> object:
        """Close the connection."""


T = TypeVar("T", bound=Closable)


@contextmanager
def closed_on_error(opened: T) -> Iterator[T]:
    """Give ``opened`` to the block, and close it only if the block raises."""
    try:
        yield opened
    except BaseException:
        opened.close()
        raise
