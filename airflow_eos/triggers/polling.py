"""The triggers' base classes (stored arguments, a polling loop) and the triggers of the sensors."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_eos.errors import EosError, name_of
from airflow_eos.hooks.kafka import KafkaSettingsHook
from airflow_eos.hooks.store import CheckpointStoreHook, ParticipantsHook

if TYPE_CHECKING:
    from airflow_eos.kafka.client.settings import KafkaSettings
    from airflow_eos.ops.supervision.progress import SeenOpen

T = TypeVar("T")


class StoredTrigger(BaseTrigger):
    """A trigger that keeps its arguments, each under its own name.

    Airflow stores them as they are for a task that defers: whoever reads its database reads them.
    So they are names of connections, and nothing of what is in these.

    Args:
        poke_interval: seconds between two looks.
        storage_conn_id: connection of the checkpoint's store; only its id is stored.
        storage_options: further options of that store, no secrets.
    """

    def __init__(
        self,
        poke_interval: float,
        storage_conn_id: str | None,
        storage_options: Mapping[str, str] | None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.poke_interval = poke_interval
        self.storage_conn_id = storage_conn_id
        self.storage_options = dict(storage_options or {})

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments, which Airflow stores readable.

        Airflow takes triggers of equal arguments for one watcher.
        """
        kind = type(self)
        arguments = {name: getattr(self, name) for name in signature(kind).parameters}
        return f"{kind.__module__}.{kind.__qualname__}", arguments

    def _store_hook(self) -> CheckpointStoreHook:
        return CheckpointStoreHook(self.storage_conn_id, self.storage_options)


class PollingTrigger(StoredTrigger):
    """Looks every ``poke_interval`` seconds until there is an answer.

    Its event is ``{"error": reason or None, "value": ...}``; where a look failed, ``raised`` is the
    name of the error, so that the sensor can raise it as its own ``poke`` would have. The looks
    block, so they run in a thread; the connections are fetched by the event loop, where Airflow's
    client lives.

    Args:
        watch: arguments of the watch (see :mod:`airflow_eos.ops.supervision.progress`).
        kafka_config_id: Kafka connection; only its id is stored.
        participant_conn_ids: connections of the other participants, by name or kind.
        poke_interval, storage_conn_id, storage_options: as of ``StoredTrigger``.
    """

    def __init__(
        self,
        *,
        watch: Mapping[str, Any],
        kafka_config_id: str,
        poke_interval: float,
        storage_conn_id: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        participant_conn_ids: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(poke_interval, storage_conn_id, storage_options)
        self.watch = dict(watch)
        self.kafka_config_id = kafka_config_id
        self.participant_conn_ids = dict(participant_conn_ids or {})

    def __repr__(self) -> str:
        # The inherited method prints every argument into the triggerer's log.
        return f"<{type(self).__name__} {self.watch} kafka_config_id={self.kafka_config_id!r}>"

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event, when there is an answer or a failure."""
        try:
            kafka = await KafkaSettingsHook(self.kafka_config_id).asettings()
            storage = await self._store_hook().aoptions()
            reach = await ParticipantsHook(self.participant_conn_ids).areach()
            while (answer := await self.look(kafka, storage, reach)) is None:  # noqa: ASYNC110 - nobody to wake us
                await asyncio.sleep(self.poke_interval)
        except EosError as error:
            answer = {"error": str(error), "raised": name_of(error), "value": None}
        yield TriggerEvent(answer)  # type: ignore[no-untyped-call]

    async def _asked(self, look: Callable[..., T], *given: Any) -> T:
        """Run a look in a ``POLLS`` thread: the event loop's own threads are for all triggers."""
        from airflow_eos.ops.supervision.trigger_watch import POLLS

        return await POLLS.ask(object(), partial(look, *given))

    @abstractmethod
    async def look(
        self, kafka: KafkaSettings, storage: Mapping[str, str], reach: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Return the event's payload, or None to look again later."""


class CheckpointProgressTrigger(PollingTrigger):
    """Waits until the target is reached or the pipeline has stalled."""

    async def look(
        self, kafka: KafkaSettings, storage: Mapping[str, str], reach: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Look at the checkpoint once, and once more where the first look suspects a stall."""
        del reach  # progress is Spark's, whatever the participants
        from airflow_eos.ops.supervision.progress import ProgressJudge

        watch = ProgressJudge(**self.watch)
        first = await self._asked(watch.look, kafka, storage)
        found = watch.conclude(first)
        if found.again_after_s is not None:
            await asyncio.sleep(found.again_after_s)
            found = watch.conclude(await self._asked(watch.look, kafka, storage), earlier=first)
        if found.done or found.error:
            return {"error": found.error, "value": dict(found.value)}
        return None


class TransactionTimeoutTrigger(PollingTrigger):
    """Waits until a transaction runs out of time."""

    _seen: SeenOpen | None = None

    async def look(
        self, kafka: KafkaSettings, storage: Mapping[str, str], reach: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Look once for transactions that run out of time."""
        from airflow_eos.ops.supervision.progress import SeenOpen, TimeoutJudge

        self._seen = self._seen or SeenOpen()
        look = TimeoutJudge(**self.watch).look
        found = await self._asked(look, kafka, storage, reach, self._seen)
        return {"error": None, "value": found} if found else None


class BlockedTopicTrigger(PollingTrigger):
    """Waits until a transaction holds the readers of a topic up."""

    async def look(
        self, kafka: KafkaSettings, storage: Mapping[str, str], reach: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Look once for transactions that hold readers up."""
        del storage, reach  # only the Kafka cluster is asked
        from airflow_eos.ops.supervision.progress import BlockedJudge

        found = await self._asked(BlockedJudge(**self.watch).look, kafka)
        return {"error": None, "value": found} if found else None
