"""The trigger that watches an app by its checkpoint for a deferred ``SparkStreamingOperator``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from airflow.triggers.base import TriggerEvent

from airflow_eos.errors import StoreError
from airflow_eos.triggers.polling import StoredTrigger

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint import CheckpointStore
    from airflow_eos.ops.supervision.trigger_watch import TriggerPoll


_NOBODY_WAITS = (
    "Airflow ended the wait of its task: a user cleared or marked it, or its rows were deleted"
)


class AppTrigger(StoredTrigger):
    """Watches an app every ``poke_interval`` seconds until it has ended; then yields one event.

    Its event is read by :meth:`airflow_eos.ops.supervision.trigger_watch.AppResult.of_event`. A
    store that does not answer is asked again, one that refuses with the connection as it is now.
    The looks of all triggers of this process share one thread pool, and two that ask for the same
    checkpoint at a time share one look.

    Args:
        watch: see :class:`airflow_eos.ops.supervision.trigger_watch.TriggerPoll`.
        poke_interval, storage_conn_id, storage_options: as of ``StoredTrigger``.
    """

    def __init__(
        self,
        *,
        watch: Mapping[str, Any],
        poke_interval: float,
        storage_conn_id: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(poke_interval, storage_conn_id, storage_options)
        self.watch = dict(watch)

    def __repr__(self) -> str:
        # The inherited method prints every argument into the triggerer's log.
        return f"<{type(self).__name__} {self.watch}>"

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event, when the app has ended or cannot be watched."""
        try:
            event = await self._until_ended()
        except Exception as error:  # whatever it is, the app may live: its task looks again
            self.log.exception("%s cannot be watched", self.watch["checkpoint"])
            await asyncio.sleep(self.poke_interval)
            event = self._watched().unwatched(error)
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """Stop the app as the operator's ``cancel`` says: nobody waits for it any more.

        A user cleared or marked the task, or its rows were deleted: which, Airflow does not say.
        """
        watch, store = self._watched(), await self._store()
        done = await asyncio.to_thread(watch.stop, store, _NOBODY_WAITS)
        self.log.warning("%s: %s", watch.checkpoint, done)

    async def _until_ended(self) -> dict[str, Any]:
        from airflow_eos.ops.supervision.heartbeat_monitor import (
            REFUSED_AT_MOST,
            HeartbeatReading,
            is_refusal,
            read_pulse,
        )
        from airflow_eos.ops.supervision.trigger_watch import LOOKS

        watch, store = self._watched(), await self._store()
        pulse = HeartbeatReading(store, every_s=self.poke_interval)
        options = tuple(sorted(self.storage_options.items()))
        key = (store.location, self.storage_conn_id, options)
        began, refused = time.monotonic(), 0
        while True:
            try:
                found = await LOOKS.ask(key, partial(read_pulse, store))
            except StoreError as error:
                self.log.warning("The checkpoint did not answer; asking again: %s", error)
                pulse.no_answer()
                if is_refusal(error):
                    refused += 1
                    if refused >= REFUSED_AT_MOST:
                        raise
                    store = await self._store()  # keys expire: ask with those of now
            else:
                refused = 0
                event = watch.judge(pulse.hold(*found), time.monotonic() - began)
                if event is not None:
                    return event
            await asyncio.sleep(self.poke_interval)

    def _watched(self) -> TriggerPoll:
        from airflow_eos.ops.supervision.trigger_watch import TriggerPoll

        return msgspec.convert(self.watch, TriggerPoll)

    async def _store(self) -> CheckpointStore:
        return await self._store_hook().aopen(self.watch["checkpoint"])
