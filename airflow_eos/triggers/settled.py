"""Triggers that wait for settled batches: for a deferred task, and for an ``AssetWatcher``."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from functools import partial
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_eos.errors import EosError, name_of
from airflow_eos.triggers.polling import StoredTrigger

log = logging.getLogger(__name__)
_NOTHING = -1


class _AtACheckpoint(StoredTrigger):
    checkpoint_location: str

    async def _looks(self) -> Callable[[], Awaitable[int]]:
        """Return a function that reads the newest settled batch; fetch the connection only once."""
        from airflow_eos.ops.settled import newest_settled
        from airflow_eos.ops.supervision.trigger_watch import POLLS

        store = await self._store_hook().aopen(self.checkpoint_location)

        async def look() -> int:
            newest = await POLLS.ask(object(), partial(newest_settled, store))
            return _NOTHING if newest is None else newest

        return look


class SettledBatchesTrigger(_AtACheckpoint):
    """Waits for the deferred emitter until the newest settled batch is another one than ``after``.

    Its event is ``{"error": reason or None}``, with ``raised``, the name of the error.

    Args:
        checkpoint_location: of the pipeline.
        after: the last batch that was emitted; None: none was.
        not_before_ms, at_most_s: time (ms since the epoch) until which the trigger waits first, and
            for how many seconds at most: another machine's clock, which may be years ahead, set it.
        storage_conn_id, storage_options: of the checkpoint's store; no secrets.
        poke_interval: seconds between two looks.
    """

    def __init__(
        self,
        *,
        checkpoint_location: str,
        after: int | None,
        not_before_ms: int = 0,
        at_most_s: float = 0,
        storage_conn_id: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        poke_interval: float = 5,
    ) -> None:
        super().__init__(poke_interval, storage_conn_id, storage_options)
        self.checkpoint_location = checkpoint_location
        self.after, self.not_before_ms, self.at_most_s = after, not_before_ms, at_most_s

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event, when another batch is settled or a look failed."""
        told = _NOTHING if self.after is None else self.after
        answer: dict[str, Any] = {"error": None}
        try:
            await asyncio.sleep(min(self.not_before_ms / 1000 - time.time(), self.at_most_s))
            look = await self._looks()
            # An older batch is of a new checkpoint or an older copy: the task tells them apart.
            while await look() == told:  # noqa: ASYNC110 - nobody to wake us
                await asyncio.sleep(self.poke_interval)
        except EosError as error:
            answer = {"error": str(error), "raised": name_of(error)}
        yield TriggerEvent(answer)  # type: ignore[no-untyped-call]


class SettledBatchesWatcher(_AtACheckpoint, BaseEventTrigger):
    """Yields an event whenever a later batch is settled: for an ``AssetWatcher``, *at least once*.

    Airflow stores a watcher's event in one step, and the trigger learns of it in another; so after
    a triggerer was killed, or has slept, an event may come again for the same batch. None is
    missed: each start yields one for the newest settled batch. So the payload is a level and not a
    difference: ``{"checkpoint": ..., "to_batch": N}``. A DAG that must not act twice schedules on
    the asset of :class:`~airflow_eos.operators.events.EmitSettledBatchesOperator` instead.

    Watchers of one checkpoint share its looks (Airflow 3.3 and later).

    Args:
        checkpoint_location: of the pipeline.
        at_least: yield an event only once so many batches have been settled since the last event.
        storage_conn_id, storage_options: of the checkpoint's store; no secrets.
        poke_interval: seconds between two looks.
    """

    def __init__(
        self,
        *,
        checkpoint_location: str,
        at_least: int = 1,
        storage_conn_id: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        poke_interval: float = 5,
    ) -> None:
        super().__init__(poke_interval, storage_conn_id, storage_options)
        self.checkpoint_location = checkpoint_location
        self.at_least = at_least

    def shared_stream_key(self) -> Hashable:
        """Return the key by which watchers of one checkpoint, with equal options, share looks."""
        options = tuple(sorted(self.storage_options.items()))
        return self.checkpoint_location, self.storage_conn_id, options, self.poke_interval

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[int]:
        """Yield the newest settled batch whenever it changes; look again where a look fails."""
        watcher, look, seen = cls(**kwargs), None, _NOTHING
        while True:
            try:
                look = look or await watcher._looks()
                newest = await look()
            except EosError as error:
                log.warning("%s", error)
                look, newest = None, seen  # keys expire: ask with those of now
            if newest != seen:
                seen = newest
                yield newest
            await asyncio.sleep(watcher.poke_interval)

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[int]
    ) -> AsyncIterator[TriggerEvent]:
        """Yield an event for the first batch seen, then for every ``at_least`` more batches."""
        rung: int | None = None
        async for newest in shared_stream:
            if newest == _NOTHING:  # an empty folder, as of a disk that is not mounted, is no batch
                continue
            if rung is None or newest - rung >= self.at_least or newest < rung:
                rung = newest
                payload = {"checkpoint": self.checkpoint_location, "to_batch": newest}
                yield TriggerEvent(payload)  # type: ignore[no-untyped-call]

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield the events without a shared stream, for an Airflow that has none."""
        _, kwargs = self.serialize()
        async for event in self.filter_shared_stream(self.open_shared_stream(kwargs)):
            yield event
