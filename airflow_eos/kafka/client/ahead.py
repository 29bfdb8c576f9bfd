"""What is made beside, before it is asked for: answers that wait while those before are decoded."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Event, Semaphore, Thread
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

T = TypeVar("T")


def ahead(items: Iterator[T], most: int) -> Generator[T, None, None]:
    """The same items, up to ``most`` of them made on a thread beside, before they are asked for."""
    made: SimpleQueue[tuple[bool, Any]] = SimpleQueue()
    free, left = Semaphore(most), Event()

    def make() -> None:
        try:
            while free.acquire() and not left.is_set():
                made.put((True, next(items)))
        except StopIteration:
            made.put((False, None))
        except BaseException as error:  # noqa: BLE001 - it belongs to who asks
            made.put((False, error))

    Thread(target=make, name="airflow-eos-fetch", daemon=True).start()
    try:
        while True:
            is_item, item = made.get()
            if not is_item:
                if item is not None:
                    raise item
                return
            yield item
            free.release()
    finally:
        left.set()
        free.release()
