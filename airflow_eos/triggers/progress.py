"""The waiting half of ``CheckpointProgressSensor``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from airflow_eos.triggers.polling import PollingTrigger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_eos.kafka.client.settings import KafkaSettings


class CheckpointProgressTrigger(PollingTrigger):
    """Waits until the target is reached or the pipeline has stalled."""

    async def look(
        self, kafka: KafkaSettings, storage: Mapping[str, str], reach: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Look once, and once more where the first look raised a suspicion."""
        del reach  # progress is Spark's, whoever takes part
        from airflow_eos.supervision.watch import ProgressWatch

        watch = ProgressWatch(**self.watch)
        first = await asyncio.to_thread(watch.look, kafka, storage)
        found = watch.conclude(first)
        if found.again_after_s is not None:
            await asyncio.sleep(found.again_after_s)
            found = watch.conclude(
                await asyncio.to_thread(watch.look, kafka, storage), earlier=first
            )
        if found.done or found.error:
            return {"error": found.error, "value": dict(found.value)}
        return None
